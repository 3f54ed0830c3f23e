"""Private room of a running request: pages, first come first served where they are short, and states."""

from __future__ import annotations

from typing import Any

from ...actors import ReplyToken
from ...components import messages as c
from ...errors import ConfigError, NoCapacity, StaleLease
from ...spec import Tier
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import CacheActors
from .capacity import Capacity, Shortage
from .capacity_queue import CapacityQueue
from .flights import Flight
from .lease_book import LiveLeases
from .leases import LeaseRecord, Share

_L1 = Tier.L1  # asking an enum for a member costs more than a call


class ExtendFlight(Flight, eq=False):
    """One extend that waits for room."""

    by: Extending
    record: LeaseRecord
    msg: m.Extend
    patience: float

    def wait_with(self, table: dict[ReplyToken, Any], token: ReplyToken) -> None:
        """Queue up, and be answered later; its patience counts from its asking on."""
        super().wait_with(table, token)
        self.by.queue.join(self, token.since + self.patience)

    async def try_again(self) -> bool:
        """Take the room, if it is there now; whether it waits no longer."""
        if not self.by.is_live(self.record):
            self.refuse(StaleLease(self.record.id))
            return True
        extended = await self.by.take(self.record, self.msg.count)
        if extended is None:
            return False
        self.answer(extended)
        return True

    def is_awaited(self) -> bool:
        """Say whether something will let it go on: it stands in the queue."""
        return self in self.by.queue.waiting

    async def expire(self) -> bool:
        """Be refused; whether its lease holds anything that a release would give to others."""
        error, _ = await self.by.no_capacity(self.record, self.msg.count)
        self.refuse(error)
        return self.record.holds

    async def leave(self) -> None:
        """Leave the queue; it holds nothing."""
        self.by.queue.leave(self)


class Extending:
    """Extend, trim and keep states for the cache actor; used inside its operations only."""

    def __init__(
        self,
        actors: CacheActors,
        capacity: Capacity,
        queue: CapacityQueue,
        leases: LiveLeases,
        patience: float,
    ) -> None:
        self._actors = actors
        self._capacity = capacity
        self._leases = leases
        self._patience = patience
        self._page = actors.page
        self._names = tuple(part.name for part in actors.components)
        self._snapshots = {part.name: part for part in actors.snapshots}
        self._states = tuple((part.index, part.name) for part in actors.snapshots)
        self._windowed = tuple(part.index for part in actors.windowed)
        self._nothing = (b"",) * len(actors.components)
        self.queue = queue

    async def extend(self, record: LeaseRecord, msg: m.Extend) -> m.Extended | ExtendFlight:
        """Extend at once, or return what is to queue up: there is no room, or others wait for some.

        Raises NoCapacity for a request that no release could ever satisfy, or without patience.
        """
        count = msg.count
        if count < 1:
            raise ConfigError(f"extend needs at least one token, not {count}")
        if record.extent > record.passed:
            await self._advance(record)
        want = self._want(record, count)
        if not want:
            return self._grant(record, count, self._nothing)
        if not self.queue.waiting:
            got = await self._capacity.allocate(_L1, want)
            if not isinstance(got, Shortage):
                return self._grant(record, count, got)
        patience = self._patience if msg.patience < 0 else msg.patience
        error, hopeless = await self.no_capacity(record, count)
        if hopeless or patience <= 0:
            raise error
        return ExtendFlight(self, record, msg, patience)

    async def take(self, record: LeaseRecord, count: int) -> m.Extended | None:
        """Extend if there is room now."""
        self._leases.to_change(record.id)
        want = self._want(record, count)
        got = await self._capacity.allocate(_L1, want) if want else self._nothing
        return None if isinstance(got, Shortage) else self._grant(record, count, got)

    async def no_capacity(self, record: LeaseRecord, count: int) -> tuple[NoCapacity, bool]:
        """Say what lacks for so many tokens more, and whether no release could ever help."""
        return await self._capacity.no_capacity(self._want(record, count))

    def is_live(self, record: LeaseRecord) -> bool:
        """Say whether a lease has not been released."""
        return record.id in self._leases

    def _want(self, record: LeaseRecord, count: int) -> tuple[tuple[str, int], ...]:
        """Return what each component needs for so many tokens more; empty where none needs any."""
        page, last = self._page, record.extent - 1
        pages = (last + count) // page - last // page
        want = [(name, pages) for name in self._names]
        lacking = pages
        for index, name in self._states:
            slots = 0 if record.shares[index].slot else 1
            want[index] = (name, slots)
            lacking += slots
        return tuple(want) if lacking else ()

    def _grant(self, record: LeaseRecord, count: int, pages: tuple[bytes, ...]) -> m.Extended:
        """Hand a lease what it wanted, one list a component."""
        record.extent += count
        slots: tuple[str, ...] = ()
        if pages is not self._nothing:
            for share, mine in zip(record.shares, pages, strict=True):
                if mine:
                    if not share.part.snapshot:
                        share.table.append(mine)
                    else:
                        share.slot = mine
                        slots += (share.part.name,)
        return m.Extended(record.extent, slots)

    async def take_back(self, record: LeaseRecord, count: int, extended: m.Extended) -> None:
        """Undo an extend whose answer found nobody: its pages and slots are free again."""
        free = self._surplus(record, record.extent - count)
        new = [share for share in record.shares if share.part.name in extended.slots]
        free += [(share.part.name, share.slot, 0) for share in new]
        await self._capacity.free(_L1, free)
        self._shorten(record, record.extent - count)
        for share in new:
            share.slot = b""

    async def snapshot(self, record: LeaseRecord, msg: m.Snapshot) -> int:
        """Keep the working state as that of a position; -1 where there is no slot for the copy."""
        at, part, extent = msg.at, self._snapshots.get(msg.component), record.extent
        if part is None:
            raise ConfigError(f"{msg.component!r} is not a snapshot component of this model")
        share = record.shares[part.index]
        if at != extent:
            raise ConfigError(
                f"the working state is that of the extent, {extent}, not of {at}: extend by what is "
                f"computed and no more, or trim the room that is not"
            )
        if at % self._page or at <= record.published:
            raise ConfigError(
                f"a snapshot must stand at a multiple of {self._page} behind what is published, "
                f"{record.published}, not at {at}"
            )
        if not share.slot:
            raise ConfigError(f"{msg.component!r} has no working state before the first extend")
        if share.kept and share.kept[-1][0] == at:
            kept = share.kept[-1][1]
            copy = t.CopyState(part.name, share.slot, kept, msg.stream)
            self._capacity.note_fence(await self._actors.l1.ask(copy))
            return int.from_bytes(kept, "little")
        slot = await self._capacity.clone(part, share.slot, msg.stream)
        if isinstance(slot, Shortage):
            return -1
        share.kept.append((at, slot))
        return int.from_bytes(slot, "little")

    async def trim(self, record: LeaseRecord, count: int) -> int:
        """Give back the room of the last tokens, none of them computed; return the extent."""
        extent = record.extent - count
        floor = max(record.published, record.computed)
        if count < 0 or extent < floor:
            raise ConfigError(
                f"at most {record.extent - floor} tokens can be trimmed, not {count}: "
                f"what stands before {floor} is computed"
            )
        if count:
            await self._capacity.free(_L1, self._surplus(record, extent))
            self._shorten(record, extent)
        record.forget(extent)
        return extent

    def _surplus(self, record: LeaseRecord, extent: int) -> list[tuple[str, bytes, int]]:
        """Return the private room behind a new extent, and the states kept there."""
        end = -(-extent // self._page) * self._page
        free: list[tuple[str, bytes, int]] = []
        for share in record.shares:
            if share.part.snapshot:
                free += [(share.part.name, slot, 0) for at, slot in share.kept if at > extent]
            elif end < record.extent:
                free.append((share.part.name, share.table.tail(end, self._page), 0))
        return free

    def _shorten(self, record: LeaseRecord, extent: int) -> None:
        """Take the room behind a new extent, and states kept there, out of a lease."""
        surplus = -(-record.extent // self._page) - -(-extent // self._page)
        for share in record.shares:
            if share.part.snapshot:
                share.kept = [(at, slot) for at, slot in share.kept if at <= extent]
            else:
                share.table.drop_end(surplus)
        record.extent = extent

    async def _advance(self, record: LeaseRecord) -> None:
        """Note that the engine has computed all there is room for, and let go what windows have passed."""
        record.computed = extent = record.extent
        if not self._windowed:
            record.passed = extent
            return
        page = self._page
        free: list[tuple[str, bytes, int]] = []
        moved: list[tuple[Share, int]] = []
        standing = [at for index, _ in self._states for at, _ in record.shares[index].kept]
        for index in self._windowed:
            share = record.shares[index]
            part = share.part
            start = part.rule.window_start(extent, standing)
            if start <= share.table.start:
                continue
            moved.append((share, start))
            if start > share.own_start:
                free.append((part.name, share.own(start), 0))
            if share.receipts and start >= share.low_end:
                receded = await part.ref.ask(c.Recede(share.receipts, start))
                share.receipts, share.low_end = receded.receipts, receded.low_end
        await self._capacity.free(_L1, free)
        for share, start in moved:
            share.table.begin_at(start, page)
            share.own_start = max(share.own_start, start)
        record.passed = extent
