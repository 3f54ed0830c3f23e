"""One client of the reference server: a connection that stays open, and streams."""

from __future__ import annotations

import time
from typing import Any, Self

import h11
import msgspec
import trio

from ..errors import IntegrityError


class Turn(msgspec.Struct, frozen=True):
    """One answered turn: tokens of its prompt, those reused, seconds to its first token."""

    prompt: int
    cached: int
    ttft: float


class Connection:
    """A connection to the server at `url`, for one model; used as `async with`."""

    def __init__(self, url: str, model: str) -> None:
        self._model = model
        self._host, port = url.removeprefix("http://").rsplit(":", 1)
        self._port = int(port)

    async def __aenter__(self) -> Self:
        self._stream = await trio.open_tcp_stream(self._host, self._port)
        self._http = h11.Connection(h11.CLIENT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def ask(self, prompt: str, tokens: int) -> tuple[str, Turn]:
        """Ask for a completion, streamed; answer it, and how it went. Raises IntegrityError."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        headers = [("host", self._host), ("content-length", str(len(body)))]
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        sent = [self._http.send(event) for event in (request, h11.Data(body), h11.EndOfMessage())]
        asked = time.perf_counter()
        await self._stream.send_all(b"".join(part for part in sent if part))
        first, told = 0.0, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some())
            elif isinstance(event, h11.Response) and event.status_code != 200:
                raise IntegrityError(f"the server answered with status {event.status_code}")
            elif isinstance(event, h11.Data):
                first = first or time.perf_counter() - asked
                told += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        self._http.start_next_cycle()
        *pieces, last, done = bytes(told).strip().split(b"\n\n")
        if done != b"data: [DONE]":
            raise IntegrityError(f"the server broke off: {last.decode()}")
        text = "".join(_event(piece)["choices"][0]["text"] for piece in pieces)
        usage = _event(last)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return text, Turn(usage["prompt_tokens"], cached, first)


def _event(line: bytes) -> dict[str, Any]:
    event: dict[str, Any] = msgspec.json.decode(line.removeprefix(b"data: "))
    return event
