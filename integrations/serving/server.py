"""The process: cache, engine, scheduler and HTTP server put together, and how they end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import hypercorn.trio
import msgspec
import trio
from hypercorn.config import Config
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from transformers import PreTrainedModel

from ...errors import ConfigError
from ...runtime.cache import Cache, open_cache
from ...runtime.config import CacheConfig
from ...telemetry import Telemetry
from ..layout import CacheLayout
from ..transformers import TransformersEngine
from .app import make_app
from .scheduler import Limits, Scheduler

_serve_http = cast("Callable[..., Awaitable[None]]", hypercorn.trio.serve)
_SECONDS = tuple(mantissa * 10.0**power for power in range(-3, 2) for mantissa in (1, 2.5, 5))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to call the model, where to listen (port 0: any that is free), tokens of a prefill step.

    `batched` computes a token of all that answer in one forward, and not one by one. `grace` is how
    long, in seconds, running requests may go on when the server ends, `body_timeout` how long a client
    may take to send a request.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 0
    chunk: int = 256
    batched: bool = True
    grace: float = 5.0
    body_timeout: float = 10.0
    limits: Limits = Limits()


class Serving(msgspec.Struct, frozen=True):
    """A server that listens."""

    url: str
    cache: Cache
    scheduler: Scheduler


async def serve(
    model: PreTrainedModel,
    layout: CacheLayout,
    config: CacheConfig,
    settings: Settings,
    *,
    stop: Callable[[], Awaitable[object]] = trio.sleep_forever,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` returns, then end in order: refuse, let run for `grace` seconds, close.

    Cancelled, it ends at once. The cache gets everything back either way. Raises ConfigError where it
    cannot listen, and for a model that does not say how many positions it has.
    """
    longest = _positions(model)
    context = min(
        longest, layout.longest or longest, (config.l1["full"] - 1) * layout.spec.page_size
    )
    http = Config()
    http.bind = [f"{settings.host}:{settings.port}"]
    http.loglevel, http.include_server_header, http.graceful_timeout = "WARNING", False, 1.0
    stopped = trio.Event()
    async with (
        _meters() as (meters, metrics),
        open_cache(config, telemetry=Telemetry(meter_provider=meters)) as cache,
    ):
        meter = meters.get_meter("banyankv.server")
        first_token = meter.create_histogram(
            "banyankv.server.time_to_first_token",
            unit="s",
            description="Time from a request's arrival to its first token",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        engine = TransformersEngine(
            model, cache, layout, chunk=settings.chunk, threaded=True, batched=settings.batched
        )
        scheduler = Scheduler(engine, settings.limits, first_token.record)
        name = "banyankv.server.requests."
        running, waiting = scheduler.running, scheduler.waiting
        meter.create_observable_gauge(f"{name}running", [_reading(lambda: len(running))])
        meter.create_observable_gauge(f"{name}waiting", [_reading(lambda: len(waiting))])
        preempted = [_reading(lambda: scheduler.preempted)]
        meter.create_observable_counter(f"{name}preempted", preempted)
        app = make_app(
            cache,
            scheduler,
            settings.name,
            context,
            metrics,
            host=settings.host,
            body_timeout=settings.body_timeout,
        )
        async with trio.open_nursery() as listening:
            listen = partial(_serve_http, app, http, shutdown_trigger=stopped.wait)
            try:
                urls: list[str] = await listening.start(listen)
            except* (OSError, OverflowError) as errors:
                cause: BaseException = errors
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                raise ConfigError(f"{http.bind[0]}: {cause}") from cause
            async with trio.open_nursery() as scheduling:
                scheduling.start_soon(scheduler.run)
                task_status.started(Serving(urls[0], cache, scheduler))
                await stop()
                scheduler.close()
                with trio.move_on_after(settings.grace):
                    await scheduler.drained()
                scheduling.cancel_scope.cancel()
            stopped.set()


def _positions(model: PreTrainedModel) -> int:
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions is None:
        raise ConfigError(
            "the model's configuration has no max_position_embeddings, so that nobody knows how long "
            "a prompt may be; add it to config.json"
        )
    return int(positions)


@asynccontextmanager
async def _meters() -> AsyncGenerator[tuple[MeterProvider, Callable[[], bytes]]]:
    """Give the meters of one server, and what tells their figures as Prometheus reads them."""
    registry = CollectorRegistry()
    meters = MeterProvider([PrometheusMetricReader(registry=registry)])
    try:
        yield meters, partial(generate_latest, registry)
    finally:
        meters.shutdown()


def _reading(count: Callable[[], int]) -> Callable[[CallbackOptions], list[Observation]]:
    return lambda _: [Observation(count())]
