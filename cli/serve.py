"""`banyankv serve`: a reference serving process for a tiny or local model, speaking OpenAI's API."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter
from rich.console import Console

from ..errors import ConfigError
from ..replay.presets import PAGE_SIZE
from .extras import require_packages
from .sizes import convert_bytes
from .tiers import TierOptions

if TYPE_CHECKING:
    from ..integrations.serving.server import Serving

_ROOM = Group("Room", sort_key=1)
_SERVE = Group("Serving", sort_key=2)
_NEEDED = ("transformers", "hypercorn", "starlette", "prometheus_client")


def serve(
    model: Annotated[str, Parameter(allow_leading_hyphen=False)] = "lara-mini",
    /,
    *,
    host: Annotated[str, Parameter(group=_SERVE)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=_SERVE)] = 8000,
    running: Annotated[int, Parameter(group=_SERVE)] = 8,
    waiting: Annotated[int, Parameter(group=_SERVE)] = 64,
    chunk: Annotated[int, Parameter(group=_SERVE)] = 256,
    batched: Annotated[bool, Parameter(group=_SERVE)] = True,
    grace: Annotated[float, Parameter(group=_SERVE)] = 5.0,
    audit_rate: Annotated[float, Parameter(group=_SERVE)] = 10.0,
    page_size: Annotated[int, Parameter(group=_ROOM)] = PAGE_SIZE,
    l1_tokens: Annotated[int, Parameter(group=_ROOM)] = 16_384,
    l2_tokens: Annotated[int, Parameter(group=_ROOM)] = 65_536,
    store: Annotated[Path | None, Parameter(group=_ROOM)] = None,
    store_bytes: Annotated[
        int, Parameter(group=_ROOM, converter=convert_bytes, show_default=lambda _: "1GiB")
    ] = 2**30,
) -> int:
    """Serve a model on loopback: an example of embedding the cache, not a server for production.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /metrics and /health. One token is
    one byte of text. Ctrl-C refuses new requests and lets running ones end. Needs the extra `serve`.

    Parameters
    ----------
    model
        A tiny random model by the name of its family, such as lara-mini, or the folder of a
        Transformers model.
    host
        Address to listen on.
    port
        Port to listen on; 0 for any that is free.
    running
        Requests that are computed at once.
    waiting
        Requests that may wait; more are answered with 429.
    chunk
        Tokens of one prefill step.
    batched
        Compute a token of all requests that answer in one forward, and not one by one.
    grace
        Seconds that running requests have to end when the server ends.
    audit_rate
        Slices a second, each of about a millisecond, by which an audit proves the cache's
        invariants while requests run; 0 for none.
    page_size
        Tokens of a page.
    l1_tokens
        Room on L1, in tokens.
    l2_tokens
        Room on L2, in tokens; 0 for no L2.
    store
        Folder of the L3 store; without it there is none.
    store_bytes
        Room of the store, such as 500MB or 8GiB.

    """
    for option, value in (
        ("running", running),
        ("waiting", waiting),
        ("chunk", chunk),
        ("page-size", page_size),
    ):
        if value < 1:
            raise ConfigError(f"--{option} must be at least 1, not {value}")
    if not grace >= 0:
        raise ConfigError(f"--grace must be 0 seconds or more, not {grace:g}")
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"--port must be within 0..65535, not {port}")
    tiers = TierOptions(
        l1_tokens=l1_tokens, l2_tokens=l2_tokens, store=store, store_bytes=store_bytes
    )
    if l1_tokens < chunk + page_size:
        raise ConfigError(
            f"--l1-tokens {l1_tokens} cannot hold a step of one prompt: give at least --chunk and "
            f"a page, {chunk + page_size}"
        )
    require_packages("serving", "serve", *_NEEDED)
    console = Console(highlight=False, soft_wrap=True)
    with console.status("loading torch and Transformers"):
        from ..integrations.layout import describe
        from ..integrations.loading import load
        from ..integrations.serving import server
        from ..integrations.serving.scheduler import Limits
        from ..integrations.serving.text import require_bytes

        loaded = load(model)
        require_bytes(loaded)
        layout = describe(loaded, page_size=page_size)
    config = tiers.config(layout.spec, device=str(loaded.device), audit_rate=audit_rate)
    settings = server.Settings(
        name=Path(model).name,
        host=host,
        port=port,
        chunk=chunk,
        batched=batched,
        grace=grace,
        limits=Limits(running=running, waiting=waiting),
    )

    serving = partial(server.serve, loaded, layout, config, settings, stop=_interrupted)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listening: Serving = await nursery.start(serving)
            console.print(
                f"{settings.name} on {listening.url}/v1 (a reference server; Ctrl-C ends)"
            )

    trio.run(main)
    return 0


async def _interrupted() -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
