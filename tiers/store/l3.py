"""The L3 actor: asks a store on behalf of the cache, and shields the cache from it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from ...actors import Leaf, ReplyToken, handles
from ...spec import ModelSpec
from .breaker import Breaker, Permit
from .keys import CHAIN_BYTES
from .messages import (
    CallOver,
    Fetch,
    Outcomes,
    Probe,
    Probed,
    Save,
    StoreCall,
    StoreItem,
    StoreTierStatistics,
)
from .protocol import MissReason, Store
from .store_io import L2Bytes, Progress, StoreFailed, StoreIO

_Work = Callable[[Progress], Awaitable[None]]
_Transfer = Callable[[Sequence[StoreItem], Progress], Awaitable[None]]

LAYOUT = "page-first/1"
"""How a body's bytes are arranged: whole pages, each with all its layers."""

SHARD = "0/1"
"""Which part of the model's bytes an object has: all of them."""

_LOOKS = 64
"""How often a call's time is looked at until it is over."""


class _Call:
    """One call that is under way: who waits for it and what lets it end.

    `shape` is how many keys each part of a probe has, None for a fetch or save. `had` counts the
    looks at its time that found it at the store, `over` ends them.
    """

    __slots__ = ("had", "keys", "over", "permit", "scope", "shape", "started", "token", "verb")

    def __init__(
        self,
        verb: str,
        keys: int,
        shape: tuple[int, ...] | None,
        permit: Permit,
        token: ReplyToken,
    ) -> None:
        self.verb = verb
        self.keys = keys
        self.shape = shape
        self.permit = permit
        self.token = token
        self.scope = trio.CancelScope()
        self.over = trio.CancelScope()
        self.had: int | None = None
        self.started = time.time_ns()


class StoreTier(Leaf):
    """Serve `Probe`, `Fetch` and `Save`; the store stays its maker's to close.

    Each is a task of its own; at most `calls` of them are at the store at once,
    and each has `timeout` seconds. What comes in time is answered as done, the rest as `TIMEOUT`;
    that counts against the store when it had the call for at least half of the time. While the
    breaker is open, all are answered at once.

    Only time in which the event loop runs counts: an engine that blocks it for longer than
    `timeout` keeps us from looking, and not the store from answering. So time is counted in small
    steps, each as long as it was meant to be, however late it ended.

    L2 pages in a message belong to the call until it is answered. Ask without a deadline in the
    envelope and shielded from cancellation: an asker that leaves early ends the call soon, but its
    pages may be read or written a little longer.
    """

    def __init__(
        self,
        store: Store,
        model: ModelSpec,
        l2: L2Bytes,
        *,
        breaker: Breaker,
        timeout: float = 30.0,
        calls: int = 4,
    ) -> None:
        super().__init__()
        self._store = store
        self._io = StoreIO(store, model, l2, LAYOUT, SHARD)
        self._breaker = breaker
        self._timeout = timeout
        self._slots = trio.CapacityLimiter(calls)
        self._calls: dict[int, _Call] = {}
        self._numbers = 0
        self._counts: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._misses: Counter[tuple[str, MissReason]] = Counter()

    def __repr__(self) -> str:
        return f"<StoreTier {self._store!r} {self._breaker.state.value}, {len(self._calls)} calls>"

    # -- steps ----------------------------------------------------------------------------------

    @handles(Probe)
    def probe(self, message: Probe) -> Probed | None:
        """Ask which objects are there: in a task of its own, or none while the breaker is open."""
        self._io.check_wanted(message.wanted)
        shape = tuple(len(chains) // CHAIN_BYTES for _, chains in message.wanted)
        work = partial(self._io.probe, message.wanted)
        if self._begin("probe", sum(shape), shape, work):
            return None
        return Probed(tuple(map(bytes, shape)), MissReason.BREAKER_OPEN)

    @handles(Fetch)
    def fetch(self, message: Fetch) -> Outcomes | None:
        """Read objects into L2 pages: in a task of its own, or none while the breaker is open."""
        return self._transfer("fetch", message.items, self._io.fetch)

    @handles(Save)
    def save(self, message: Save) -> Outcomes | None:
        """Write objects from L2 pages: in a task of its own, or none while the breaker is open."""
        return self._transfer("save", message.items, self._io.save)

    @handles(CallOver)
    def call_over(self, message: CallOver) -> None:
        """Take the result of a call's task: settle, count, report and answer."""
        call = self._calls.pop(message.call)
        self._breaker.settle(call.permit, message.worked)
        reasons = Counter(reason for reason in message.outcomes if reason is not None)
        if call.shape is not None:
            hits = message.flags.count(1)
            reasons = Counter({MissReason.MISSING: len(message.flags) - hits}) + reasons
        else:
            hits = message.outcomes.count(None)
        self._note(call.verb, call.keys, reasons)
        self._hits[call.verb] += hits
        self._bytes[call.verb] += message.moved
        first = next(iter(reasons), None)
        self._report(call, message, hits, "ok" if first is None else first.value)
        # also where the asker left: an answer is what ends a token
        call.token.reply(_answer(call, message))

    def glance(self) -> StoreTierStatistics:
        """Tell what was done so far in this life; safe while nothing else runs in this thread."""
        return StoreTierStatistics(
            calls=tuple(sorted(self._counts.items())),
            keys=tuple(sorted(self._keys.items())),
            hits=tuple(sorted(self._hits.items())),
            bytes=tuple(sorted(self._bytes.items())),
            misses=tuple(
                sorted((verb, reason.value, n) for (verb, reason), n in self._misses.items())
            ),
            in_flight=len(self._calls),
            breaker=self._breaker.state.value,
            breaker_opened=self._breaker.opened,
            store=self._io.statistics(),
        )

    def abandoned(self, token: ReplyToken) -> None:
        """End the call that nobody waits for any more."""
        for call in self._calls.values():
            if call.token is token:
                call.scope.cancel()

    # -- calls ----------------------------------------------------------------------------------

    def _transfer(
        self, verb: str, items: tuple[StoreItem, ...], work: _Transfer
    ) -> Outcomes | None:
        self._io.check_items(items)
        if self._begin(verb, len(items), None, partial(work, items)):
            return None
        return Outcomes((MissReason.BREAKER_OPEN,) * len(items))

    def _begin(self, verb: str, keys: int, shape: tuple[int, ...] | None, work: _Work) -> bool:
        """Start a call's task and keep the reply for it, unless the breaker says no."""
        permit = self._breaker.admit()
        if permit is None:
            self._note(verb, keys, Counter({MissReason.BREAKER_OPEN: keys}))
            return False
        self._numbers += 1
        call = _Call(verb, keys, shape, permit, self.defer())
        self._calls[self._numbers] = call
        self.start(self._run, self._numbers, call, work)
        self.start(self._watch, call)
        return True

    async def _watch(self, call: _Call) -> None:
        """End a call when its time is over."""
        with call.over:
            for _ in range(_LOOKS):
                await trio.sleep(self._timeout / _LOOKS)
                if call.had is not None:
                    call.had += 1
            call.scope.cancel()

    async def _run(self, number: int, call: _Call, work: _Work) -> None:
        """Do one call, in a task of its own; tells what came of it, however it ended."""
        progress = Progress()
        reason: MissReason | None = None
        worked: bool | None = None
        error = ""
        with call.scope:
            async with self._slots:
                call.had = 0
                try:
                    await work(progress)
                    worked = True
                except StoreFailed as failure:
                    reason, worked, error = failure.reason, False, str(failure)
        call.over.cancel()
        if call.scope.cancelled_caught:
            reason = MissReason.TIMEOUT
            # an asker that left tells nothing about the store, nor does a wait for others' calls
            if not call.token.left and call.had is not None and call.had >= _LOOKS // 2:
                worked, error = False, f"not over after {self._timeout:g} seconds"
        outcomes = progress.outcomes
        if call.shape is None:
            outcomes += [reason] * (call.keys - len(outcomes))
        elif reason is not None:
            outcomes = [reason]
        await self.ref.ask(
            CallOver(
                call=number,
                outcomes=tuple(outcomes),
                flags=bytes(progress.flags),
                moved=progress.moved,
                worked=worked,
                error=error,
            )
        )

    def _note(self, verb: str, keys: int, reasons: Counter[MissReason]) -> None:
        self._counts[verb] += 1
        self._keys[verb] += keys
        for reason, number in reasons.items():
            self._misses[verb, reason] += number

    def _report(self, call: _Call, message: CallOver, hits: int, outcome: str) -> None:
        observer = self.system.observer
        if observer is not None:
            observer.fact(
                StoreCall(
                    started=call.started,
                    ended=time.time_ns(),
                    trace=call.token.trace,
                    error=message.error,
                    verb=call.verb,
                    keys=call.keys,
                    hits=hits,
                    bytes=message.moved,
                    outcome=outcome,
                )
            )


def _answer(call: _Call, message: CallOver) -> Probed | Outcomes:
    if call.shape is None:
        return Outcomes(message.outcomes)
    present: list[bytes] = []
    offset = 0
    for keys in call.shape:
        # where the store failed in the midst, what was not asked is not there
        present.append(message.flags[offset : offset + keys].ljust(keys, b"\0"))
        offset += keys
    return Probed(tuple(present), message.outcomes[0] if message.outcomes else None)
