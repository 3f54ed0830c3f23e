"""The referee: which prefix may be reused, restated page by page without a tree.

The model is flat. A page is named by everything that identifies it, its namespace and all tokens up to
its end; a paged payload is the presence of such a name, a snapshot is the presence of the name of its
boundary. Nothing here knows nodes, edges or locks, except that a boundary must be a place where some
node ends or where the walk of the query stops: `Flat.ends` lists the former.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from banyankv import ModelSpec, Namespace, PagedSpec, Tier

SINK = 3
"""Tokens at the beginning that the rule `sink` always needs."""


class Key(NamedTuple):
    """One page, or one boundary: the namespace and every token up to its end."""

    namespace: Namespace
    prefix: tuple[int, ...]


def len_of(key: Key) -> int:
    """The boundary that a key names."""
    return len(key.prefix)


def floor(tokens: int, page: int) -> int:
    """Round down to whole pages."""
    return tokens // page * page


def ceil(tokens: int, page: int) -> int:
    """Round up to whole pages."""
    return -(-tokens // page) * page


class Rules:
    """What each component of a model needs at a boundary, in the words of the design's table."""

    def __init__(self, model: ModelSpec) -> None:
        self.page = model.page_size
        self.names = tuple(c.name for c in model.components)
        self.paged = tuple(c.name for c in model.components if isinstance(c, PagedSpec))
        self.snapshots = tuple(c for c in self.names if c not in self.paged)
        self._spec = {c.name: c for c in model.components if isinstance(c, PagedSpec)}

    def need(self, component: str, at: int) -> tuple[tuple[int, int], ...]:
        """Token ranges that a paged component must still have at position `at`; some may be empty."""
        spec = self._spec[component]
        if spec.rule == "full":
            return ((0, at),)
        if spec.rule == "swa":
            return ((max(0, at - spec.window), at),)
        if spec.rule == "chunked":
            return ((at - at % spec.window, at),)
        if spec.rule == "sink":
            return ((0, min(SINK, at)), (max(0, at - spec.window), at))
        raise AssertionError(f"the reference model has no rule {spec.rule!r}")

    def low(self, component: str, at: int) -> int:
        """First token that a paged component must still have at position `at` (`at` itself: none)."""
        return self.need(component, at)[0][0]

    def pages(self, component: str, at: int) -> list[int]:
        """Ends of the pages that a paged component must hold for boundary `at`."""
        page = self.page
        ends: set[int] = set()
        for start, end in self.need(component, at):
            if start < end:
                ends.update(range(floor(start, page) + page, ceil(end, page) + 1, page))
        return sorted(ends)

    def gaps(self, component: str, at: int) -> frozenset[int]:
        """Ends of pages between the ranges of boundary `at`: only nodes that reach into a range count."""
        pages = self.pages(component, at)
        return frozenset(range(min(pages, default=0), at + 1, self.page)) - frozenset(pages)

    def trimmed(self, component: str, extent: int, snapshots: Iterable[int]) -> int:
        """Where a running request's page table may begin: all that its next tokens and its
        unpublished snapshots still need starts at or behind this page start."""
        positions = (extent, floor(extent, self.page), *snapshots)
        return floor(min(self.low(component, at) for at in positions), self.page)


State = dict[tuple[str, Tier], dict[Key, str]]
"""Per component and tier: what is held, and whether it is "present" or still "arriving"."""


@dataclass(frozen=True)
class Flat:
    """What the cache holds at one moment: per component and tier the pages (or states) and their
    state, where nodes end, which pages exist at all, and how often each page is locked on L1."""

    held: State
    ends: frozenset[Key]
    known: frozenset[Key]
    locks: Mapping[tuple[str, Key], int]
    node_of: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    """For each page: its node's (start, end) in tokens."""

    def pages(self, component: str, tier: Tier) -> frozenset[Key]:
        """Everything that is held, present or arriving."""
        return frozenset(self.held[component, tier])

    def on_device(self) -> dict[str, frozenset[Key]]:
        """Everything that is held on L1, by component."""
        return {name: self.pages(name, tier) for name, tier in self.held if tier == Tier.L1}

    def usable(self, component: str, key: Key, host: bool) -> bool:
        """Whether a request can have this page: at once from L1, or (`host`) after a copy to L1."""
        device = self.held[component, Tier.L1].get(key)
        if not host:
            return device == "present"
        return device is not None or self.held[component, Tier.L2].get(key) == "present"

    def walk_end(self, namespace: Namespace, tokens: tuple[int, ...], page: int) -> int:
        """How far the tree knows these tokens."""
        depth = 0
        while depth + page <= len(tokens) and Key(namespace, tokens[: depth + page]) in self.known:
            depth += page
        return depth


class Referee:
    """What the cache must answer, worked out from a `Flat`."""

    def __init__(self, model: ModelSpec) -> None:
        self.rules = Rules(model)

    def allows(self, flat: Flat, component: str, key: Key, host: bool = True) -> bool:
        """Whether one component could be reused up to the boundary `key`."""
        at = len(key.prefix)
        if at == 0:
            return True
        if component in self.rules.snapshots:
            return flat.usable(component, key, host)
        return all(
            flat.usable(component, Key(key.namespace, key.prefix[:end]), host)
            for end in self.rules.pages(component, at)
        )

    def candidates(
        self, flat: Flat, namespace: Namespace, tokens: tuple[int, ...]
    ) -> Iterator[Key]:
        """Places where reuse may stop, deepest first: every page's end as far as the tree knows."""
        page = self.rules.page
        query = tokens[: floor(len(tokens) - 1, page)]
        for at in range(flat.walk_end(namespace, query, page), -1, -page):
            yield Key(namespace, query[:at])

    def boundary(
        self,
        flat: Flat,
        namespace: Namespace,
        tokens: tuple[int, ...],
        host: bool = True,
        components: tuple[str, ...] | None = None,
    ) -> int:
        """The deepest place to which all `components` allow reuse: the maximum over all candidates."""
        names = self.rules.names if components is None else components
        for key in self.candidates(flat, namespace, tokens):
            if all(self.allows(flat, name, key, host) for name in names):
                return len(key.prefix)
        raise AssertionError("the root is always allowed")

    def full_extent(self, flat: Flat, namespace: Namespace, tokens: tuple[int, ...]) -> int:
        """How far FULL agrees, on either tier, with the tokens that a request may reuse."""
        page, full = self.rules.page, self.rules.names[0]
        limit, depth = floor(len(tokens) - 1, page), 0
        while depth < limit and flat.usable(
            full, Key(namespace, tokens[: depth + page]), host=True
        ):
            depth += page
        return depth

    def ground(self, flat: Flat, namespace: Namespace, tokens: tuple[int, ...]) -> int:
        """How far L2 holds FULL, there or arriving: what the store brings must begin there."""
        limit, depth = floor(len(tokens) - 1, self.rules.page), 0
        held = flat.pages(self.rules.names[0], Tier.L2)
        while depth < limit and Key(namespace, tokens[: depth + self.rules.page]) in held:
            depth += self.rules.page
        return depth

    def missing_on_l1(self, flat: Flat, key: Key) -> dict[str, int]:
        """Pages per component that an acquire of boundary `key` has to bring to L1.

        Payload is brought by whole nodes, as far as the boundary; a state needs its slot there and
        one for the private copy.
        """
        out: dict[str, int] = {}
        for name in self.rules.names:
            held = flat.held[name, Tier.L1]
            if name in self.rules.snapshots:
                out[name] = 1 + (key not in held) if key.prefix else 0
                continue
            page, ends = self.rules.page, set[int]()
            for end in self.rules.pages(name, len(key.prefix)):
                where = Key(key.namespace, key.prefix[:end])
                start, stop = flat.node_of.get(where, (end - page, end))
                ends.update(range(start + page, min(stop, len(key.prefix)) + 1, page))
            out[name] = sum(Key(key.namespace, key.prefix[:end]) not in held for end in ends)
        return out

    def faults(self, flat: Flat, write_through: bool) -> list[str]:
        """Everything about one moment that no history may lead to."""
        found: list[str] = []
        full, page = self.rules.names[0], self.rules.page
        for tier in (Tier.L1, Tier.L2) if write_through else (Tier.L1,):
            held = flat.pages(full, tier)
            for key in held:
                parent = Key(key.namespace, key.prefix[:-page])
                if parent.prefix and parent not in held:
                    found.append(f"{full} on {tier.name} is not upward closed at {key}")
            for name in self.rules.names[1:]:
                for key in flat.pages(name, tier) - held:
                    found.append(f"{name} on {tier.name} without {full} at {key}")
        anywhere = flat.pages(full, Tier.L1) | flat.pages(full, Tier.L2)
        for key in flat.known - anywhere:
            if not any(flat.locks.get((name, key)) for name in self.rules.names):
                found.append(f"a node without {full} survived at {key}")
        return found
