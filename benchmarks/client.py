"""A client of the reference server: one streamed completion."""

from __future__ import annotations

import time
from typing import Any

import h11
import msgspec
import trio

from ..errors import IntegrityError

_OK = 200


class Turn(msgspec.Struct, frozen=True):
    """One answered turn: tokens of its prompt, those reused, seconds to its first token."""

    prompt: int
    cached: int
    ttft: float


async def ask(url: str, model: str, prompt: str, tokens: int) -> tuple[str, Turn]:
    """Ask the server at `url` for a completion, streamed; answer it, and how it went.

    Raises IntegrityError where the server does not answer to the end.
    """
    host, port = url.removeprefix("http://").rsplit(":", 1)
    http = h11.Connection(h11.CLIENT)
    body = msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    headers = [("host", host), ("content-length", str(len(body)))]
    request = h11.Request(method="POST", target="/v1/completions", headers=headers)
    sent = [http.send(event) for event in (request, h11.Data(body), h11.EndOfMessage())]
    first, told = 0.0, bytearray()
    asked = time.perf_counter()
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(b"".join(part for part in sent if part))
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response) and event.status_code != _OK:
                raise IntegrityError(f"the server answered with status {event.status_code}")
            elif isinstance(event, h11.Data):
                first = first or time.perf_counter() - asked
                told += event.data
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
