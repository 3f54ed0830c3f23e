"""Lease: what a request holds, as the engine sees it."""

from __future__ import annotations

import warnings
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from ..actors import InjectedFault
from ..errors import (
    ActorCrashed,
    ActorStopped,
    Closed,
    StaleLease,
    WouldWait,
)
from ..spec import TOKEN_BYTES
from . import messages as m
from .arguments import require_int, require_seconds, require_text, stream_handle
from .request_timer import RequestTimer
from .tokens import Tokens, pack

if TYPE_CHECKING:
    from .coordinator.leases import Share
    from .port import Port


_LOST = (ActorCrashed, InjectedFault)
"""What a release is asked again after: it may not have been heard."""

_TRIES = 10


class Lease:
    """A locked prefix plus private pages. Use it as `async with`; leaving the block gives all back.

    Positions are tokens. Page tables are memoryviews of int32 page ids into the L1 pools; they stay
    valid until the lease is released, but see changes (a publish re-points duplicates in place, an
    extend may move the table: ask again after it). A lease belongs to one task at a time.
    After release every method raises StaleLease.

    The stream of an acquire, or of a publish, is made to wait for what others wrote on other streams:
    what the engine enqueues there finds the lease's bytes. `stream=` is by default the one that was
    last named to the lease, from its acquire on; where none was, the caller's current one.
    """

    def __init__(
        self, port: Port, acquired: m.Acquired, count: int, request: RequestTimer, stream: int
    ) -> None:
        self._port = port
        self._stream = stream
        port.fences.follow(stream)
        self._request = request
        self.id = acquired.lease
        """The number by which the cache knows it."""
        self._record = record = port.leases[acquired.lease]
        record.claimed = True
        self._live = True
        self.length = acquired.length
        """Tokens that need no recompute: whole pages, and never the prompt's last token."""
        self.full_match = acquired.full
        """How far FULL agreed; a state kept there would lift the next request that far."""
        self.hit = acquired.hit
        """Where the reused tokens were when the request came."""
        self.known = count
        """Tokens whose ids are known."""
        self._prompt = count
        self._appended = bytearray()

    @property
    def extent(self) -> int:
        """Tokens that have pages."""
        return self._record.extent

    @property
    def published(self) -> int:
        """Tokens that the tree owns."""
        return self._record.published

    def __repr__(self) -> str:
        state = f"{self.length} reused, {self.published} published, {self.extent} in all"
        return f"<Lease {self.id} [{state if self._live else 'released'}]>"

    def __del__(self) -> None:
        if self._live and not (self._port.closed or self._port.ref.stopped):
            warnings.warn(
                f"{self!r} was dropped and not released: what it holds stays locked until the cache "
                f"closes; use `async with`, or await release()",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    async def __aenter__(self) -> Self:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()

    def pages(self, component: str) -> memoryview:
        """Return the page table of a paged component: int32 ids of the tokens from `start(component)` on.

        Empty where nothing has pages yet. `torch.tensor` makes floats of an empty table, which are no
        index: give it a `dtype`.
        """
        return self._share(component, snapshot=False).table.view()

    def start(self, component: str) -> int:
        """Return the token at which the first page of `pages(component)` begins."""
        return self._share(component, snapshot=False).table.start

    def state(self, component: str = "mamba") -> int | None:
        """Return the slot of the working state: the request's own, to be updated in place.

        Holds the state at `length` when the lease is fresh; None until the first extend where
        `length` is 0.
        """
        slot = self._share(component, snapshot=True).slot
        return int.from_bytes(slot, "little") if slot else None

    def _share(self, component: str, *, snapshot: bool) -> Share:
        self._require_live()
        return self._record.shares[self._port.index(component, snapshot=snapshot)]

    @trio.lowlevel.enable_ki_protection
    async def extend(
        self, count: int, *, deadline: float | None = None, stream: int | None = None
    ) -> None:
        """Take private pages for `count` more tokens, evicting under pressure.

        Says that all tokens so far have been computed, so windows let go what they have passed.
        Waits up to `deadline` seconds (by default the configured time; 0 or less: not at all), first
        come first served; raises NoCapacity then, or at once where it could never be met. Cancelled
        while waiting, it takes nothing. The tables of windows say what was let go when it is over:
        nobody may read them while it waits. Who extends page by page while others want much may stand
        behind them, holding what they want: take what a request needs at once, or give a deadline.
        """
        self._require_live()
        count = require_int("extend: the number of tokens", count, 1)
        patience = -1.0 if deadline is None else max(0.0, require_seconds("deadline", deadline))
        port = self._port
        await port.yield_if_due()
        try:
            await port.answer(
                m.Extend(self.id, count, patience, port.fences.record(self._named(stream))),
                trace=self._request.trace,
            )
        except BaseException as error:
            port.refuse_stopped(error)
            raise

    def append(self, tokens: Tokens) -> None:
        """Tell the ids of generated tokens behind those known, so that they can be published.

        They stand behind all that is known, whether there is room for them yet or not; `trim` takes
        back those without room.
        """
        self._require_live()
        packed = pack(tokens)
        self._appended += packed
        self.known += len(packed) // TOKEN_BYTES

    @trio.lowlevel.enable_ki_protection
    async def snapshot(
        self, component: str = "mamba", *, at: int, stream: int | None = None
    ) -> int | None:
        """Keep the working state as it is now as the state at `at`, for whoever forks there.

        `at` is the extent, a multiple of the page size behind `published`: the state has seen all
        tokens that there is room for. Whoever has put an older state into the slot trims to its
        position first. The tree takes the copy with the publish that reaches `at`; until then a
        newer one for the same place replaces it. Returns the copy's slot, or None where there is no
        slot to be had: a snapshot is a bonus.
        """
        self._require_live()
        slot = await self._port.ask(
            m.Snapshot(
                self.id,
                require_text("component", component),
                require_int("at", at),
                self._named(stream),
            ),
            trace=self._request.trace,
        )
        return None if slot < 0 else slot

    @trio.lowlevel.enable_ki_protection
    async def trim(self, count: int, *, stream: int | None = None) -> None:
        """Give back the last `count` tokens' room, and all ids told behind what is left: rejected drafts.

        With a count of 0 it takes back ids that have no room, as after an extend that was refused.
        Ids of the prompt stay known. Nothing that the cache knows to be computed can be trimmed: not
        what is published, nor what had room when the last extend was asked for.
        """
        self._require_live()
        count, before = require_int("trim: the number of tokens", count, 0), self.extent
        try:
            extent = await self._port.ask(
                m.Trim(self.id, count, self._port.fences.record(self._named(stream))),
                trace=self._request.trace,
            )
        except BaseException:
            if self.extent < before:  # done, and cancelled after that: asyncio tells so
                self._forget_ids(max(self._prompt, self.extent))
            raise
        self._forget_ids(max(self._prompt, extent))

    def _forget_ids(self, known: int) -> None:
        """Forget ids behind a position; the cache actor has done the same with those it was told."""
        surplus = (self.known - known) * TOKEN_BYTES
        if surplus > 0:
            del self._appended[max(0, len(self._appended) - surplus) :]
            self.known = known

    @trio.lowlevel.enable_ki_protection
    async def publish(self, upto: int | None = None, *, stream: int | None = None) -> int:
        """Hand computed pages up to `upto` (floored to a page) over; return the length reached.

        By default everything that has pages and known ids. Pages that others published meanwhile are
        given back and re-pointed in this lease's tables. Stops before a node whose payload is just
        arriving on L1; the rest stays private.
        """
        self._require_live()
        target = min(self.extent, self.known) if upto is None else require_int("upto", upto)
        appended = bytes(self._appended)
        port, at = self._port, self.known - len(appended) // TOKEN_BYTES
        published = await port.ask(
            m.Publish(self.id, target, appended, at, port.fences.record(self._named(stream))),
            trace=self._request.trace,
        )
        port.fences.follow(self._stream)  # tables may show pages that others wrote
        if appended:
            del self._appended[: len(appended)]
        return published.length

    @trio.lowlevel.enable_ki_protection
    async def release(self, *, stream: int | None = None) -> None:
        """Give back everything; idempotent, and not cancelled half-way.

        Never raises for what happens to the cache: one that has closed holds nothing that could be
        given back, and says so itself where its block is left; one that crashes is asked again.
        """
        if self._live:
            port, trace = self._port, self._request.trace
            if not port.ref.stopped:
                port.require_host()
            release = m.Release(self.id, port.fences.record(self._named(stream)))
            self._live = False
            try:
                try:
                    port.ref.call(release, trace)
                except (WouldWait, *_LOST):
                    await port.shielded(partial(self._release_again, release))
            except (Closed, ActorStopped):
                pass
            finally:
                self._request.released(self.hit, self.extent, self.published)

    async def _release_again(self, release: m.Release) -> None:
        """Ask until it is done: of a release that had begun nothing is left to do."""
        port = self._port
        for _ in range(_TRIES):
            try:
                await port.answer(release, trace=self._request.trace)
            except _LOST:
                continue
            return
        self._record.claimed = False  # a recovery, or the audit, finds it

    def _named(self, stream: int | None) -> int:
        """Return the stream of a call, which is the default of those after it."""
        if stream is not None:
            self._stream = stream_handle(stream)
        return self._stream

    def _require_live(self) -> None:
        if not self._live:
            raise StaleLease(self.id)
