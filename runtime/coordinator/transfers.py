"""What is in flight between tiers: each transfer is one object that owns its states.

    begun --> running --> over: settled, and who waited goes on        (promote, backup, save, prefetch)

Each is planned, allocated and started within one operation of the cache actor, so that what was seen
is what is copied; its end comes back as a message. Sources are safe meanwhile: pages that leave
their node stay in quarantine until the transfer is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...actors import Fact
from ...components.move_messages import Moved
from ...errors import IntegrityError
from ...spec import Tier
from .cache_actors import CacheActors
from .capacity import Capacity
from .counters import Counters
from .reporting import Reporter

if TYPE_CHECKING:
    from .acquiring import AcquireFlight

Kind = TypeVar("Kind", bound="Transfer")


class Transfers:
    """The transfers in flight; used inside the cache actor's operations only."""

    def __init__(
        self,
        actors: CacheActors,
        counters: Counters,
        capacity: Capacity,
        page_bytes: tuple[int, ...],
        report: Reporter,
    ) -> None:
        self.actors = actors
        self.counters = counters
        self.capacity = capacity
        self.report = report
        self.page_bytes = page_bytes
        self._last = 0
        self.running: dict[int, Transfer] = {}

    def begin(self, transfer: Transfer) -> int:
        """Register a transfer; return its id."""
        self._last += 1
        self.running[self._last] = transfer
        return self._last

    def of(self, kind: type[Kind], id: int) -> Kind:
        """Return the transfer of a kind that a message speaks of."""
        transfer = self.running[id]
        if not isinstance(transfer, kind):
            raise IntegrityError(f"transfer {id} is no {kind.__name__}")
        return transfer

    def any_of(self, kind: type[Transfer]) -> bool:
        """Say whether a transfer of a kind is in flight."""
        return any(isinstance(transfer, kind) for transfer in self.running.values())

    def quiet(self) -> bool:
        """Say whether nothing is in flight, nor due."""
        return not (self.running or len(self.capacity.due))

    def follow_split(self, node: int, upper: int) -> None:
        """Let what is due or on its way for a node hold for its upper half too."""
        self.capacity.due.split(node, upper)
        for transfer in self.running.values():
            transfer.split(node, upper)


class Transfer:
    """One transfer on its way, and the acquires that wait for it; `target` is where it puts pages."""

    __slots__ = ("_transfers", "id", "started", "waiting")

    target: ClassVar[Tier] = Tier.L2

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self.id = transfers.begin(self)
        self.started = transfers.report.now()
        self.waiting: dict[AcquireFlight, None] = {}

    @property
    def at_work(self) -> bool:
        """Whether a child task of the controller works on it, or its report is on its way."""
        return True

    def join(self, flight: AcquireFlight) -> None:
        """Have an acquire wait for the end."""
        self.waiting[flight] = None

    def leave(self, flight: AcquireFlight) -> None:
        """Let an acquire wait for it no longer."""
        self.waiting.pop(flight, None)

    def split(self, node: int, upper: int) -> None:
        """Let what is on its way for a node be so for its upper half too."""

    async def settle(self, *, ok: bool) -> None:
        """End its marks and free what was waiting for its end."""
        capacity = self._transfers.capacity
        for part in self._transfers.actors.components:
            freed = await part.ref.ask(Moved(self.id, ok))
            if freed.free:
                await capacity.free(self.target, [(part.name, freed.free, 0)])
            for tier, pages in freed.late:
                await capacity.free(Tier(tier), [(part.name, pages, 0)])
        await capacity.over(self.id)

    def count(self, direction: str, size: int) -> None:
        """Count bytes that it has moved."""
        self._transfers.counters.moved_bytes[direction] += size

    def report(self, kind: type[Fact], **fields: Any) -> None:
        """Report its end for each sampled request that waits for it."""
        for flight in self.waiting:
            if flight.trace is not None:
                self._transfers.report.done(kind, self.started, flight.trace, op=self.id, **fields)

    def over(self) -> None:
        """End: it is in flight no more, and who waits hears of it."""
        del self._transfers.running[self.id]
        for flight in self.waiting:
            flight.transfer_over(self)
