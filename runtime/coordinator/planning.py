"""Planning a reuse: walk the tree, let the components agree on a boundary. Read-only throughout."""

from __future__ import annotations

import msgspec

from ...components import messages as c
from ...spec import TOKEN_BYTES
from ..messages import Acquire, Explain, Peek, Peeked
from .cache_actors import CacheActors, ComponentRef


class Plan(msgspec.Struct, frozen=True, gc=False):
    """How far a prompt can be reused: `boundary`, and `resident` where all of it is on L1.

    `full` is how far the base component alone would go.
    """

    boundary: int
    resident: bool
    full: int


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Why one component goes no further: `reach` tokens, stopped by `node` (None: no node lacks it).

    `reason` is closed: `reaches` (it agrees with the whole walk), `absent` (the node's payload is on
    no tier that counts), `unknown` (the tree holds no such tokens).
    """

    component: str
    reach: int
    node: int | None
    reason: str


def reusable_tokens(tokens: bytes, page: int) -> int:
    """Return how many tokens of a prompt may be reused at most: whole pages, and never the last token."""
    count = len(tokens) // TOKEN_BYTES
    return (count - 1) // page * page if count else 0


class Planner:
    """Plan for the cache actor; used inside its operations only."""

    def __init__(self, actors: CacheActors) -> None:
        self._actors = actors

    def walk_of(self, msg: Acquire | Peek | Explain) -> c.Walk:
        """Ask for what of a prompt may be reused."""
        size = reusable_tokens(msg.tokens, self._actors.page) * TOKEN_BYTES
        return c.Walk(msg.namespace, msg.tokens, c.ROOT, size)

    async def alone(self, walked: c.Walked, *, host: bool) -> int:
        """Return how far the base component alone would go."""
        reached = await self._actors.base.ref.ask(
            c.Reach(walked.path, walked.ends, walked.ends[-1], walked.partial, host)
        )
        return reached.boundary

    async def agree(self, walked: c.Walked, *, host: bool) -> Plan:
        """Take the least answer and ask again with it as the limit, until nobody lowers it."""
        if not walked.path:
            return Plan(0, resident=True, full=0)
        boundary = walked.ends[-1]
        full = -1
        settled: ComponentRef | None = None
        resident = True
        while True:
            for part in self._actors.components:
                if part is settled:
                    return Plan(boundary, resident, full)
                reached = await part.ref.ask(
                    c.Reach(walked.path, walked.ends, boundary, walked.partial, host)
                )
                if full < 0:
                    full = reached.boundary
                if reached.boundary < boundary or settled is None:
                    boundary, settled, resident = reached.boundary, part, reached.resident
                    if not boundary:
                        return Plan(0, resident=True, full=full)
                else:
                    resident = resident and reached.resident

    async def peek(self, msg: Peek) -> Peeked:
        """Return how far a prompt could be reused."""
        walked = await self._actors.tree.ask(self.walk_of(msg))
        lower = await self.agree(walked, host=True)
        if lower.resident:
            return Peeked(lower.boundary, lower.boundary, lower.full)
        device = await self.agree(walked, host=False)
        return Peeked(lower.boundary, device.boundary, lower.full)

    async def explain(self, msg: Explain) -> tuple[Verdict, ...]:
        """Return, per component on its own, how far it would go and what stops it."""
        limit = reusable_tokens(msg.tokens, self._actors.page)
        walked = await self._actors.tree.ask(self.walk_of(msg))
        end = walked.ends[-1] if walked.ends else 0
        verdicts: list[Verdict] = []
        for part in self._actors.components:
            reached = await part.ref.ask(
                c.Reach(walked.path, walked.ends, end, walked.partial, host=True)
            )
            if reached.boundary < end:
                reason = "absent"
            else:
                reason = "reaches" if end == limit else "unknown"
            verdicts.append(Verdict(part.name, reached.boundary, reached.hole, reason))
        return tuple(verdicts)
