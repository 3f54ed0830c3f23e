"""A store is code of anybody: what it answers, raises, or does too late never ends the cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec
import pytest
import trio
from banyankv import ConfigError, open_cache
from banyankv.tiers.store.memory import MemoryStore

from .positions import TOKENS, config, empty, entries, serve

ANSWERS: list[tuple[Callable[[list[object]], object], str]] = [
    (lambda _: None, "bad_answer"),
    (lambda _: "yes", "bad_answer"),
    (lambda right: (answer for answer in right), "bad_answer"),
    (lambda right: dict.fromkeys(range(len(right))), "bad_answer"),
    (lambda right: right[1:], "cardinality"),
    (lambda right: [*right, True], "cardinality"),
    (lambda right: [1.5 for _ in right], "bad_answer"),
    (lambda right: ["x" for _ in right], "bad_answer"),
    (lambda right: [[answer] for answer in right], "bad_answer"),
]
ERRORS = [
    ValueError("no"),
    ExceptionGroup("several", [OSError("a"), KeyError("b")]),
    StopIteration(),
]


class Odd(MemoryStore):
    """Does as it should, and answers one verb in its own way."""

    def __init__(self, verb: str, answer: Callable[[list[object]], object]) -> None:
        super().__init__()
        self.verb: str | None = verb
        self.answer = answer

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        return self.said("exists", await super().exists(keys))

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.said("get", await super().get(keys))

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        return self.said("put", await super().put(items))

    def said(self, verb, right):
        return self.answer(right) if verb == self.verb else right


async def served_on(store: Odd, dispatch: str) -> set[str]:
    """Save and read through an odd store; return the reasons of its misses."""
    made, verb = config(dispatch, swa=100, states=True), store.verb
    store.verb = None if verb == "get" else verb
    async with open_cache(made, store=store) as cache:
        assert await serve(cache, TOKENS[:513], (256, 512)) == 0
        assert await serve(cache, TOKENS[:513], ()) == 512
        misses = (await cache.stats()).store.misses
        await empty(cache)
    store.verb = verb
    async with open_cache(made, store=store) as cache:
        length = await serve(cache, TOKENS[:513], ())
        # where only the answer of a put is odd, what it has written serves
        assert length == (512 if verb == "put" else 0)
        misses += (await cache.stats()).store.misses
        await empty(cache)
    return {reason for _, reason, _ in misses} - {"missing"}


@pytest.mark.parametrize("verb", ["exists", "get", "put"])
@pytest.mark.parametrize(("answer", "reason"), ANSWERS)
async def test_a_wrong_answer_is_a_miss_with_a_reason(
    dispatch: str, verb: str, answer: Callable[[list[object]], object], reason: str
) -> None:
    assert await served_on(Odd(verb, answer), dispatch) - {"breaker_open"} == {reason}


@pytest.mark.parametrize("verb", ["exists", "get", "put"])
@pytest.mark.parametrize("error", ERRORS)
async def test_whatever_a_store_raises_is_a_miss(
    dispatch: str, verb: str, error: Exception
) -> None:
    def fail(_: list[object]) -> object:
        raise error

    assert await served_on(Odd(verb, fail), dispatch) - {"breaker_open"} == {"store_failed"}


async def test_what_is_no_store_is_refused(dispatch: str) -> None:
    with pytest.raises(ConfigError, match="no method 'exists'"):
        async with open_cache(config(dispatch), store={}):  # type: ignore[arg-type]
            pass


class Shy(MemoryStore):
    def statistics(self):
        raise RuntimeError("none of your business")


class Mute(MemoryStore):
    statistics = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Shy, Mute])
async def test_a_store_that_cannot_describe_itself_serves(
    dispatch: str, kind: type[MemoryStore]
) -> None:
    async with open_cache(config(dispatch), store=kind()) as cache:
        await serve(cache, TOKENS[:257], (256,))
        seen = (await cache.stats()).store
        assert seen is not None
        assert seen.store is None
        assert dict(seen.hits)["save"] == 1


class Threaded(MemoryStore):
    """Answers from a thread, and lets it alone where it is cancelled."""

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        work = lambda: [key in self.objects for key in keys]  # noqa: E731
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


@pytest.mark.parametrize("kind", [MemoryStore, Threaded])
async def test_a_call_that_has_finished_has_not_timed_out_whoever_was_late_to_look(
    kind: type[MemoryStore], dispatch: str
) -> None:
    """Forwards that block the event loop for longer than the store may take."""
    made, store = config(dispatch, swa=100, states=True), kind()
    made = msgspec.structs.replace(made, store_timeout=0.008)

    async def engine() -> None:
        while True:
            time.sleep(0.012)  # noqa: ASYNC251 - a forward on the event loop's own thread
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine)
        async with open_cache(made, store=store) as cache:
            await serve(cache, TOKENS[:257], (256,))
        assert len(entries(store)) == 3
        async with open_cache(made, store=store) as cache:
            assert await serve(cache, TOKENS[:257], ()) == 256
        nursery.cancel_scope.cancel()


class Refusing(MemoryStore):
    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        await trio.lowlevel.checkpoint()
        return [False for _ in items]


class Failing(MemoryStore):
    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        raise OSError("unplugged")


@pytest.mark.parametrize(("kind", "reason"), [(Refusing, "refused"), (Failing, "breaker_open")])
async def test_a_store_that_takes_nothing_is_said_once_and_seen_in_the_statistics(
    kind: type[MemoryStore], reason: str, dispatch: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="banyankv")
    async with open_cache(config(dispatch), store=kind()) as cache:
        for first in range(12):
            await serve(cache, [first, *TOKENS[:256]], (256,))
        said = [record for record in caplog.records if "takes nothing" in record.getMessage()]
        assert len(said) == 1
        assert reason in said[0].getMessage()
        seen = (await cache.stats()).store
        assert dict(seen.hits).get("save", 0) == 0
        assert any(why == reason for _, why, _ in seen.misses)
