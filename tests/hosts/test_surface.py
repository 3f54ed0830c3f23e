"""Cache and Lease have the same public names, with the same parameters, on every host."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import banyankv
import pytest
import trio
from banyankv import threads

from .host import Asyncio, Host, Trio, Uvloop
from .rooms import PROMPT, config

ADDED = {
    "Cache": {
        "submit": "answers a ticket, for step loops that poll",
        "extend_batch": "one trip to the cache's thread for a whole step",
        "publish_batch": "as extend_batch",
        "release_batch": "as extend_batch",
        "bridge": "between files of the package: the way into the cache's thread",
        "stream": "between files of the package: the stream that the calling thread has set",
    },
    "Lease": {
        "bridge": "between files of the package, as the cache's",
        "turn": "between files of the package: held while a call of the lease is under way",
        "call": "between files of the package: a call that takes its turn",
        "extending": "between files of the package: for batches",
        "publishing": "as extending",
        "leaving": "as extending",
        "left": "between files of the package: a batch has released it",
        "give_back": "between files of the package: for a ticket that nobody took the lease from",
    },
}
"""What there is on threads only, and why."""

LACKING = {
    "Cache": {
        "leave": "between files of the package: the block of the cache's own thread does it",
        "through": "between files of the package: a host makes its face of the cache by it",
    },
    "Lease": {},
}
"""What there is not on threads, and why."""

UNTIMED = {
    "release": "it never waits for others, and is seen through",
}
"""Verbs that have no `timeout` on threads, and why."""

ANSWERS = {
    "acquire_batch": "threads answer the error of a prompt that is refused in its place",
}
"""Verbs that answer something else on threads, and why."""


def names(instance: object) -> set[str]:
    """Name what is public of it: verbs, properties and attributes."""
    return {name for name in dir(instance) if not name.startswith("_")}


@pytest.fixture(scope="module")
def faces() -> dict[str, tuple[Any, Any]]:
    """Give a cache and a lease on trio and on threads, by their kinds; both are over."""

    async def on_trio() -> tuple[Any, Any]:
        async with (
            banyankv.open_cache(config("direct")) as cache,
            await cache.acquire(PROMPT) as lease,
        ):
            return cache, lease

    cache, lease = trio.run(on_trio)
    with threads.open_cache(config("direct")) as other, other.acquire(PROMPT) as leased:
        return {"Cache": (cache, other), "Lease": (lease, leased)}


@pytest.mark.parametrize("kind", ["Cache", "Lease"])
def test_threads_have_the_public_names_of_trio(
    faces: dict[str, tuple[Any, Any]], kind: str
) -> None:
    there, here = map(names, faces[kind])
    assert here - there == ADDED[kind].keys()
    assert there - here == LACKING[kind].keys()


@pytest.mark.parametrize("kind", ["Cache", "Lease"])
def test_threads_take_the_parameters_of_trio(faces: dict[str, tuple[Any, Any]], kind: str) -> None:
    on_trio, on_threads = map(type, faces[kind])
    compared = 0
    for name in names(on_trio) & names(on_threads):
        if callable(verb := getattr(on_trio, name)):
            assert parameters(getattr(on_threads, name), name) == parameters(verb), name
            compared += 1
    assert compared > 8


def parameters(verb: Callable[..., Any], timed: str = "") -> tuple[list[Any], object]:
    """Return what a verb takes and answers; a verb of a thread, named, without its timeout and ticket."""
    signature = inspect.signature(verb)
    taken, answer = dict(signature.parameters), str(signature.return_annotation)
    answer = answer.removeprefix("m.")  # of a module that is imported by this name
    blocking = answer.startswith("Ticket[")
    timeout = taken.pop("timeout", None)
    if timed:
        assert (timeout is not None) == (blocking and timed not in UNTIMED), timed
    if timeout is not None:
        assert (timeout.kind, timeout.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    if blocking:
        answer = answer[len("Ticket[") : -1]
    shown = [(p.name, p.kind, p.default, p.annotation) for p in taken.values()]
    return shown, None if verb.__name__ in ANSWERS else answer


@pytest.mark.parametrize("kind", [Trio, Asyncio, Uvloop])
def test_a_host_in_the_callers_thread_has_the_very_same_classes(kind: type[Host]) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config("direct")) as cache, await cache.acquire(PROMPT) as lease:
            assert type(cache) is banyankv.Cache
            assert type(lease) is banyankv.Lease

    host = kind()
    host.run(scenario)


@pytest.mark.parametrize("opener", [banyankv.asyncio.open_cache, threads.open_cache])
def test_a_cache_is_opened_with_the_same_parts(opener: Callable[..., Any]) -> None:
    expected = inspect.signature(banyankv.open_cache).parameters
    assert list(inspect.signature(opener).parameters.values()) == list(expected.values())
