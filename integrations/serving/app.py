"""The HTTP side: routes, streams, and clients that go away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from urllib.parse import urlsplit

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...errors import BanyanError
from ...runtime.cache import Cache
from ...spec import Namespace
from .generation import Generation
from .protocol import ApiError, CompletionRequest, Json, ReplyWriter, api_error, parse, usage
from .scheduler import Scheduler
from .text import decode

_BODY_BYTES, _TOKEN_BYTES = 1 << 16, 8
"""The most bytes of a request: JSON may escape every byte of a prompt."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


def make_app(
    cache: Cache,
    scheduler: Scheduler,
    model: str,
    context: int,
    metrics: Callable[[], bytes],
    *,
    host: str,
    body_timeout: float,
) -> Starlette:
    """Make the ASGI application for one model, whose prompt and answer have `context` tokens at most.

    Pages of other sites than `host` may not make a visitor's browser ask here. A request must be
    there, whole, `body_timeout` seconds after its head.
    """
    own = _LOOPBACK | {host}

    async def answer(request: Request) -> Answer:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).hostname not in own:
            raise ApiError(403, f"pages of {origin} may not ask this server")
        asked = parse(await _body(request, context, body_timeout))
        chat = request.url.path.endswith("/chat/completions")
        if asked.model != model:
            message = f"there is no model {asked.model!r}, only {model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        tokens, fork = asked.tokens(chat=chat)
        param = "messages" if chat else "prompt"
        if not tokens:
            raise ApiError(400, f"{param} is empty or missing", param=param)
        if len(tokens) + asked.length > context:
            message = f"{len(tokens)} tokens of the prompt and {asked.length} of the answer exceed "
            message += f"the context of {context} tokens"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        generation = Generation(
            tokens,
            asked.length,
            fork=fork,
            namespace=Namespace(salt=asked.cache_salt) if asked.cache_salt else None,
            temperature=asked.temperature or 0.0,
            seed=asked.seed,
        )
        return Answer(scheduler, generation, ReplyWriter(model, chat=chat), asked)

    async def models(_: Request) -> Response:
        known = {"id": model, "object": "model", "created": 0, "owned_by": "banyankv"}
        return JSONResponse({"object": "list", "data": [known]})

    async def measured(_: Request) -> Response:
        text = await trio.to_thread.run_sync(metrics)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def health(_: Request) -> Response:
        state: Json = {
            "status": "shutting down" if scheduler.closing else "ok",
            "running": len(scheduler.running) + len(scheduler.starting),
            "waiting": len(scheduler.waiting),
            "leases": (await cache.stats()).leases,
        }
        return JSONResponse(state, 503 if scheduler.closing else 200)

    return Starlette(
        routes=[
            Route("/v1/completions", answer, methods=["POST"]),
            Route("/v1/chat/completions", answer, methods=["POST"]),
            Route("/v1/models", models),
            Route("/metrics", measured),
            Route("/health", health),
        ],
        exception_handlers=dict.fromkeys((ApiError, HTTPException, ClientDisconnect), _refused),
    )


class Answer:
    """An ASGI response that is computed while its client is there, and no longer."""

    def __init__(
        self,
        scheduler: Scheduler,
        generation: Generation,
        writer: ReplyWriter,
        request: CompletionRequest,
    ) -> None:
        self._scheduler = scheduler
        self._generation = generation
        self._writer = writer
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Queue the request and answer it; leaving, for whatever reason, gives it up."""
        whole: Response | None = None
        streamed = False
        try:
            async with self._scheduler.submit(self._generation), trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                if self._request.stream:
                    await self._stream(send)
                    streamed = True
                else:
                    whole = await self._whole()
                nursery.cancel_scope.cancel()
        except BanyanError as error:
            whole = _error(api_error(error))
        # Nobody watches the client any more: the answer's end looks as if it had gone, and what then
        # was cancelled would be the server's own end of the connection.
        if whole:
            await whole(scope, receive, send)
        elif streamed:
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _whole(self) -> Response:
        try:
            text = decode([token async for token in self._generation])
        except BanyanError as error:
            return _error(api_error(error))
        return JSONResponse(self._writer.whole(text, usage(self._generation)))

    async def _stream(self, send: Send) -> None:
        """Send each token as an event, and so what goes wrong behind the first; all but the end."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        left = self._generation.length
        try:
            async for token in self._generation:
                left -= 1
                await _event(send, self._writer.piece(decode([token]), last=not left))
            if (self._request.stream_options or {}).get("include_usage"):
                await _event(send, self._writer.piece(None, usage=usage(self._generation)))
        except BanyanError as error:
            await _event(send, api_error(error).body)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _event(send: Send, said: Json) -> None:
    body = b"data: " + msgspec.json.encode(said) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _body(request: Request, context: int, seconds: float) -> bytes:
    body, most = bytearray(), _BODY_BYTES + _TOKEN_BYTES * context
    with trio.move_on_after(seconds):
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > most:
                    raise ApiError(413, f"the request is larger than {most} bytes")
        return bytes(body)
    raise ApiError(408, f"the request was not there after {seconds:g} seconds")


def _error(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return _error(error)
    if isinstance(error, HTTPException):
        return _error(ApiError(error.status_code, error.detail))
    return _error(ApiError(400, "the client left before its request was there"))  # nobody hears it
