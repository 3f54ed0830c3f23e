"""Private room of a running request: pages, first come first served where they are short, and states."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from ..actors import ReplyToken
from ..components import messages as c
from ..errors import ConfigError, NoCapacity, StaleLease
from ..spec import Tier
from ..tiers import messages as t
from . import messages as m
from .leases import LeaseRecord
from .messages import PAGE
from .parts import Part, Parts
from .pending import RoomWaiter
from .room import Room

_L1 = Tier.L1  # asking an enum for a member costs more than a call


class Extending:
    """Extend, trim and keep states for the cache actor; used inside its operations only.

    `waiters` is in order of asking.
    """

    def __init__(self, parts: Parts, room: Room, leases: Mapping[int, LeaseRecord]) -> None:
        self._parts = parts
        self._room = room
        self._leases = leases
        self._last_waiter = 0
        self.waiters: deque[RoomWaiter] = deque()

    async def begin(self, record: LeaseRecord, msg: m.Extend, patience: float) -> m.Extended | None:
        """Extend at once, or answer None where the request must `wait` for room.

        Raises NoCapacity where no eviction and no release could ever satisfy it, and where it has
        no patience.
        """
        if msg.count < 1:
            raise ConfigError(f"extend needs at least one token, not {msg.count}")
        if record.extent > record.passed:
            record.passed = record.extent
            await self.advance(record, record.extent)
        if not self.waiters or not self._want(record, self._new_pages(record, msg.count)):
            extended = await self._extend(record, msg.count)
            if isinstance(extended, m.Extended):
                return extended
        short = await self._shortage(record, msg.count)
        if patience <= 0 or short.needed > short.capacity:
            raise short.error
        return None

    def wait(self, record: LeaseRecord, msg: m.Extend, token: ReplyToken) -> RoomWaiter:
        """Queue a request for room."""
        self._last_waiter += 1
        waiter = RoomWaiter(self._last_waiter, msg, record, token)
        self.waiters.append(waiter)
        return waiter

    async def serve(self) -> None:
        """Serve who waits, in order, as far as there is room."""
        while self.waiters:
            waiter = self.waiters[0]
            if waiter.record.id not in self._leases:
                waiter.token.fail(StaleLease(f"lease {waiter.record.id} was released meanwhile"))
            else:
                extended = await self._extend(waiter.record, waiter.msg.count)
                if isinstance(extended, t.Short):
                    return
                waiter.token.reply(extended)
            self._done(waiter)

    def _done(self, waiter: RoomWaiter) -> None:
        self.waiters.remove(waiter)
        waiter.scope.cancel()

    async def time_out(self, id: int) -> None:
        """Refuse a request whose patience is over; who stands behind it may be served now."""
        await self.serve()
        for waiter in self.waiters:
            if waiter.id == id:
                shortage = await self._shortage(waiter.record, waiter.msg.count)
                waiter.token.fail(shortage.error)
                self._done(waiter)
                await self.serve()
                return

    def leave(self, token: ReplyToken) -> None:
        """Take a request whose asker left out of the queue."""
        for waiter in self.waiters:
            if waiter.token is token:
                self._done(waiter)
                return

    async def _extend(self, record: LeaseRecord, count: int) -> m.Extended | t.Short:
        pages = self._new_pages(record, count)
        want = self._want(record, pages)
        taken: Iterator[bytes] = iter(())
        if want:
            got = await self._room.take(_L1, want)
            if isinstance(got, t.Short):
                return got
            taken = iter(got)
        given: list[bytes] = []
        for share in record.shares:
            if not share.part.snapshot:
                mine = next(taken) if pages else b""
                share.own += mine
            elif share.slot:
                mine = b""
            else:
                mine = share.slot = next(taken)
            given.append(mine)
        record.extent += count
        return m.Extended(tuple(given))

    def _new_pages(self, record: LeaseRecord, count: int) -> int:
        page = self._parts.page
        return -(-(record.extent + count) // page) - -(-record.extent // page)

    @staticmethod
    def _want(record: LeaseRecord, pages: int) -> tuple[tuple[str, int], ...]:
        want: list[tuple[str, int]] = []
        for share in record.shares:
            part = share.part
            if not part.snapshot:
                if pages:
                    want.append((part.name, pages))
            elif not share.slot:
                want.append((part.name, 1))
        return tuple(want)

    async def snapshot(self, record: LeaseRecord, msg: m.Snapshot) -> int:
        """Keep the working state as that of a position; -1 where there is no slot for the copy."""
        part = self._parts.by_name.get(msg.component)
        if part is None or not part.snapshot:
            raise ConfigError(f"{msg.component!r} is not a snapshot component of this model")
        share = record.shares[part.index]
        if msg.at % self._parts.page or not record.published < msg.at <= record.extent:
            raise ConfigError(
                f"a snapshot must stand at a multiple of {self._parts.page} in "
                f"({record.published}, {record.extent}], not at {msg.at}"
            )
        if any(at == msg.at for at, _ in share.kept):
            raise ConfigError(f"there is a snapshot of {msg.component!r} at {msg.at} already")
        if not share.slot:
            raise ConfigError(f"{msg.component!r} has no working state before the first extend")
        slot = await self._room.clone(part, share.slot, msg.stream)
        if isinstance(slot, t.Short):
            return -1
        share.kept.append((msg.at, slot))
        return int.from_bytes(slot, "little")

    async def trim(self, record: LeaseRecord, count: int) -> int:
        """Give back the room of the last tokens, none of them computed; answer the extent."""
        extent = record.extent - count
        floor = max(record.published, record.computed)
        if count < 0 or extent < floor:
            raise ConfigError(f"at most {record.extent - floor} tokens can be trimmed")
        page = self._parts.page
        surplus = (-(-record.extent // page) - -(-extent // page)) * PAGE
        free: list[tuple[Part, bytes, int]] = []
        for share in record.shares:
            if share.part.snapshot:
                free += [(share.part, slot, 0) for at, slot in share.kept if at > extent]
                share.kept = [(at, slot) for at, slot in share.kept if at <= extent]
            elif surplus:
                free.append((share.part, bytes(share.own[-surplus:]), 0))
                del share.own[-surplus:]
        record.extent = extent
        await self._room.give_back(_L1, free)
        return extent

    async def advance(self, record: LeaseRecord, computed: int) -> None:
        """Note how far the engine has come, and let windows go that have been passed."""
        record.computed = max(record.computed, computed)
        page = self._parts.page
        free: list[tuple[Part, bytes, int]] = []
        standing = [at for share in record.shares for at, _ in share.kept]
        for share in record.shares:
            part = share.part
            if part.snapshot or part.base:
                continue
            start = part.rule.window_start(record.computed, standing)
            if start <= share.start:
                continue
            share.start = start
            if start > share.own_start:
                passed = min((start - share.own_start) // page * PAGE, len(share.own))
                free.append((part, bytes(share.own[:passed]), 0))
                del share.own[:passed]
                share.own_start += passed // PAGE * page
            if share.receipts and start >= share.low_end:
                receded: c.Locked = await part.ref.ask(c.Recede(share.receipts, start))
                share.receipts, share.low_end = receded.receipts, receded.low_end
        if free:
            await self._room.give_back(_L1, free)

    async def _shortage(self, record: LeaseRecord, count: int) -> _Shortage:
        """Find the pool that is shortest for this request."""
        usage: tuple[t.PoolUsage, ...] = await self._parts.l1.ask(t.Usage())
        pools = {pool.component: pool for pool in usage}
        want = self._want(record, self._new_pages(record, count))
        name, needed = max(want, key=lambda pair: pair[1] - pools[pair[0]].free)
        for other, pages in want:
            if pages > pools[other].capacity:
                name, needed = other, pages
        pool = pools[name]
        error = NoCapacity(name, needed, pool.free, await self._locked(name))
        return _Shortage(needed, pool.capacity, error)

    async def _locked(self, name: str) -> int:
        """Count the pages of a pool that live leases hold: locked in the tree, or their own."""
        part = self._parts.by_name[name]
        held: tuple[c.Held, c.Held] = await part.ref.ask(c.Ledger())
        own = 0
        for record in self._leases.values():
            share = record.shares[part.index]
            own += len(share.own) // PAGE + len(share.kept) + bool(share.slot)
        return held[0].locked + own


class _Shortage:
    """What a request lacks, as the error that says so."""

    __slots__ = ("capacity", "error", "needed")

    def __init__(self, needed: int, capacity: int, error: NoCapacity) -> None:
        self.needed = needed
        self.capacity = capacity
        self.error = error
