"""OpenAI's words: what a request may say, and how errors and answers are worded."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...errors import BanyanError
from ...runtime.messages import HitTokens
from .generation import Generation
from .scheduler import Overloaded
from .text import VOCABULARY, encode, render

Json = dict[str, Any]

_NEUTRAL: Json = {
    **dict.fromkeys(("n", "best_of", "top_p"), 1),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0),
    **dict.fromkeys(("echo", "logprobs"), False),
    **{option: [] for option in ("stop", "tools", "functions")},
    "suffix": "",
    "logit_bias": {},
    "response_format": {"type": "text"},
}
"""Options that are not supported, with the value that changes nothing."""


class ApiError(BanyanError):
    """An error as a client is told: HTTP status, headers, and OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers: dict[str, str] = {}
        kind = {429: "rate_limit_error", 503: "server_error"}.get(status, "invalid_request_error")
        self.body: Json = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }


def api_error(error: BanyanError) -> ApiError:
    """Word an error of the scheduler or the cache: the server is full, ends, or has no room."""
    full = isinstance(error, Overloaded)
    worded = ApiError(
        429 if full else 503, str(error), code="overloaded" if full else "unavailable"
    )
    worded.headers["retry-after"] = str(error.retry_after if isinstance(error, Overloaded) else 1)
    return worded


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message: text only."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def text(self) -> str:
        """Return all parts as one text."""
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a completion (`prompt`: text or token ids) or for a chat's answer (`messages`).

    Temperature 0, greedy, is the default here, and 16 tokens.
    """

    model: str
    prompt: str | list[Annotated[int, Meta(ge=0, lt=VOCABULARY)]] = ""
    messages: list[Message] = []
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None

    @property
    def length(self) -> int:
        """Tokens that the answer shall have."""
        return self.max_completion_tokens or self.max_tokens or 16

    def tokens(self, *, chat: bool) -> tuple[list[int], int]:
        """Return the prompt's tokens, and where other conversations may fork off: 0 for nowhere."""
        if not chat:
            return (encode(self.prompt) if isinstance(self.prompt, str) else self.prompt), 0
        if not self.messages:
            return [], 0
        text, fork = render((message.role, message.text()) for message in self.messages)
        return encode(text), fork


def parse(body: bytes) -> CompletionRequest:
    """Read a request. Raises ApiError, naming the parameter that is wrong."""
    try:
        said = msgspec.json.decode(body, type=Json)
        for option, neutral in _NEUTRAL.items():
            value = said.get(option)
            # To Python 0 is False, but `logprobs: 0` asks for some.
            asks = value is not neutral if neutral is False else value != neutral
            if value is not None and asks:
                raise ApiError(400, f"{option} is not supported by this server", param=option)
        return msgspec.convert(said, CompletionRequest)
    except RecursionError:
        raise ApiError(400, "the request is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message, _, where = str(error).partition(" - at ")
        param = where.strip("`").removeprefix("$").lstrip(".") or None
        raise ApiError(400, f"{message} in {param}" if param else message, param=param) from None


class ReplyWriter:
    """Words one answer, of a completion or of a chat, whole or in pieces."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._head: Json = {"id": id, "created": int(time.time()), "model": model}

    def whole(self, text: str, usage: Json) -> Json:
        """Word the whole answer."""
        kind = "chat.completion" if self._chat else "text_completion"
        return {
            **self._head,
            "object": kind,
            "choices": [self._choice(text, "message", "length")],
        } | {"usage": usage}

    def piece(self, text: str | None, *, usage: Json | None = None, last: bool = False) -> Json:
        """Word a piece of a stream; without text it is the one with the usage."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        reason = "length" if last else None
        choices = [] if text is None else [self._choice(text, "delta", reason)]
        return {**self._head, "object": kind, "choices": choices, "usage": usage}

    def _choice(self, text: str, key: str, reason: str | None) -> Json:
        said = {key: {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}


def usage(generation: Generation) -> Json:
    """Count tokens: the prompt's, how many of them were cached and where, and the answer's."""
    hit = generation.hit or HitTokens()
    where = {"device": hit.l1, "host": hit.l2, "storage": hit.l3}
    return {
        "prompt_tokens": generation.prompt,
        "completion_tokens": generation.answered,
        "total_tokens": len(generation.tokens),
        "prompt_tokens_details": {"cached_tokens": hit.total, "cached_tokens_details": where},
    }
