"""A server on a real socket around a tiny model, its clients, and the same model without either."""

import functools
import json
import random
from contextlib import asynccontextmanager
from unittest.mock import patch

import httpx2
import torch
import trio
from banyankv import CacheConfig, PagedSpec, StoreConfig, open_cache
from banyankv.integrations.serving import server
from banyankv.integrations.serving.scheduler import Limits
from banyankv.integrations.serving.server import Settings
from banyankv.integrations.serving.text import choose, decode, encode
from banyankv.integrations.tiny import tiny_model
from banyankv.integrations.transformers import describe
from msgspec.structs import replace
from transformers import DynamicCache

from .world import DISPATCH, PAGE, forward

NAME = "lara-mini"
PATIENT = 120
"""Seconds after which a test has failed: everything takes a few of them at most."""

WARM = {"temperature": 0.1, "seed": 7}
"""How answers are drawn where texts are compared: greedy ones hardly vary on a tiny model."""


@functools.cache
def model():
    """Make a model whose answers depend on what it has read more than a tiny one's usually do."""
    made = tiny_model(NAME)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight")):
                parameter.mul_(4)
    return made


@functools.cache
def layout():
    return describe(model(), page_size=PAGE)


@asynccontextmanager
async def serving(
    *,
    pages=96,
    states=48,
    host=4,
    store=None,
    stop=trio.sleep_forever,
    grace=5.0,
    room_timeout=10.0,
    chunk=32,
    body_timeout=10.0,
    longest=None,
    **limits,
):
    """Serve a tiny model; at the end nothing may be left, and all invariants must hold."""
    spec = layout().spec
    l1 = {c.name: pages if isinstance(c, PagedSpec) else states for c in spec.components}
    config = CacheConfig(
        model=spec,
        l1=l1,
        l2={name: host * count for name, count in l1.items()},
        store=StoreConfig(path=str(store), max_bytes=1 << 28) if store else None,
        prefetch_threshold=1,
        room_timeout=room_timeout,
        dispatch=DISPATCH,
    )
    settings = Settings(
        name=NAME, chunk=chunk, grace=grace, body_timeout=body_timeout, limits=Limits(**limits)
    )
    with trio.fail_after(PATIENT), patch.object(server, "open_cache", checked_cache):
        async with trio.open_nursery() as nursery:
            started = functools.partial(
                server.serve,
                model(),
                replace(layout(), longest=longest),
                config,
                settings,
                stop=stop,
            )
            serving = await nursery.start(started)
            async with httpx2.AsyncClient(base_url=serving.url, timeout=PATIENT) as client:
                yield Server(serving, client, nursery)
            await serving.scheduler.drained()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def checked_cache(*args, **options):
    """Open a cache that is found clean at its end, however that comes."""
    async with open_cache(*args, **options) as cache:
        try:
            yield cache
        finally:
            with trio.CancelScope(shield=True):
                await clean(cache)


async def clean(cache):
    """Look for what may have been left."""
    await cache.settle()
    await cache.check()
    assert (await cache.stats()).leases == 0


class Server:
    def __init__(self, serving, client, nursery):
        self.nursery = nursery
        self.url = serving.url
        self.cache = serving.cache
        self.scheduler = serving.scheduler
        self.engine = serving.scheduler._engine
        self.client = client

    async def post(self, path="/v1/completions", **said):
        return await self.client.post(path, json={"model": NAME} | said)

    async def complete(self, prompt, count=8, **said):
        """Return a completion's text and its cached tokens."""
        response = await self.post(prompt=prompt, max_tokens=count, **(WARM | said))
        assert response.status_code == 200, response.text
        body = response.json()
        details = body["usage"]["prompt_tokens_details"]
        return body["choices"][0]["text"], details["cached_tokens"]

    @asynccontextmanager
    async def stream(self, path="/v1/completions", **said):
        """Open a stream; gives its events as they come, the `[DONE]` left out."""
        said = {"model": NAME, "stream": True} | said
        async with self.client.stream("POST", path, json=said) as response:
            assert response.status_code == 200
            yield events(response)

    @asynccontextmanager
    async def hang_up(self, **said):
        """Open a stream on a socket of its own, which is closed in the middle of it."""
        body = json.dumps({"model": NAME, "stream": True} | said).encode()
        host, port = self.url.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as socket:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            await socket.send_all(head.encode() + body)
            yield RawStream(socket)

    def hold(self):
        """Hold each forward until it is let go."""
        return Gate(self.engine)


async def events(response):
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


class RawStream:
    """Counts the events of a stream as they come."""

    def __init__(self, socket):
        self._socket = socket
        self._seen = b""

    async def events(self, count):
        """Wait for so many events."""
        while self._seen.count(b"data: ") < count:
            more = await self._socket.receive_some()
            assert more, self._seen
            self._seen += more


class Gate:
    """Counts an engine's forwards, and holds them while it is shut."""

    def __init__(self, engine):
        self.forwards = 0
        self._compute, self._step = engine.compute, engine.step
        self._open = trio.Event()
        self._reached = trio.Event()
        engine.compute, engine.step = self.compute, self.step

    async def compute(self, sequence, end):
        await self._forward()
        await self._compute(sequence, end)

    async def step(self, sequences):
        if sequences:
            await self._forward()
        await self._step(sequences)

    async def _forward(self):
        self._reached.set()
        with trio.CancelScope(shield=True):  # a forward that has begun is not interrupted
            await self._open.wait()
        self.forwards += 1

    async def reached(self):
        """Wait until a forward is held."""
        await self._reached.wait()

    def open(self):
        self._open.set()


async def until(true):
    """Wait for what another task or the other end of a socket will bring about."""
    while not true():  # noqa: ASYNC110
        await trio.sleep(0.001)


def text(seed, count):
    return decode(random.Random(seed).choices(range(97, 123), k=count))


@functools.cache
def uncached(prompt, count, temperature=WARM["temperature"], seed=WARM["seed"]):
    """Return what the model says to a prompt by itself, without any cache."""
    dice = torch.Generator()
    dice.manual_seed(seed)
    known, start = encode(prompt), 0
    kv = DynamicCache(config=model().config)
    with torch.inference_mode():
        for _ in range(count):
            logits = forward(model(), kv, known, start, len(known))
            start = len(known)
            known.append(choose(logits, temperature, dice))
    return decode(known[-count:])


def reusable(tokens):
    """Return how many of so many tokens can be reused: whole pages."""
    return tokens // PAGE * PAGE
