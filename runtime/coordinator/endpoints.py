"""Where a reuse out of the store could end: the component rule, on chunks.

A legal endpoint of a component is a chunk's end for which all tokens are there that the component
needs. The hit is the deepest endpoint legal for all of them, never the least of their deepest ones.
The rule is asked twice: of what the store says it has, and of what really came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from ...components.contract import TreeComponent
from ...spec import PAGE_ID_BYTES
from ...tiers.store.messages import StoreItem

Spans = tuple[tuple[int, int], ...]
"""Token ranges [start, end), ascending, none touching the next; a state is (boundary, boundary)."""


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Join the ranges that touch or overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def covers(spans: Spans, start: int, end: int) -> bool:
    """Say whether one of the ranges has all tokens from start to end."""
    at = bisect_right(spans, start, key=itemgetter(0)) - 1
    return at >= 0 and end <= spans[at][1]


class Endpoints:
    """Compute endpoints and the objects that one needs. Chunk `i` covers [i * chunk, (i + 1) * chunk)."""

    def __init__(
        self, rules: tuple[TreeComponent, ...], chunk: int, page_bytes: Mapping[str, int]
    ) -> None:
        self._rules = rules
        self._page = rules[0].page_size
        self._page_bytes = page_bytes
        self.chunk = chunk

    def bytes(self, item: StoreItem) -> int:
        """Count the payload bytes of an object."""
        return len(item.pages) // PAGE_ID_BYTES * self._page_bytes[item.component]

    def wanted(self, count: int, full: int, reuse: int) -> dict[TreeComponent, tuple[int, ...]]:
        """Return the chunks worth asking for, per component, of a prefix with `count` whole chunks."""
        chunk = self.chunk
        first = reuse // chunk
        wanted: dict[TreeComponent, tuple[int, ...]] = {}
        for rule in self._rules:
            if rule.base:
                wanted[rule] = tuple(range(full // chunk, count))
            elif rule.snapshot:
                wanted[rule] = tuple(range(first, count))
            else:
                chunks: set[int] = set()
                for index in range(first, count):
                    chunks.update(self._touched(rule, (index + 1) * chunk))
                wanted[rule] = tuple(sorted(chunks))
        return wanted

    def _touched(self, rule: TreeComponent, boundary: int) -> Iterator[int]:
        for start, end in rule.need(boundary):
            yield from range(start // self.chunk, -(-end // self.chunk))

    def spans(self, rule: TreeComponent, chunks: Iterable[int]) -> Spans:
        """Return the tokens that whole chunks of a component cover; a state covers none at its end."""
        size = self.chunk
        return union((((i + 1) if rule.snapshot else i) * size, (i + 1) * size) for i in chunks)

    def deepest(self, held: Mapping[str, Spans], limit: int, full: int, reuse: int) -> int:
        """Return the deepest endpoint up to `limit` and beyond `reuse`, 0 where there is none.

        `held` is what there is of each component, besides FULL up to `full` on L2. The same rule judges what
        a store says it has and what came of it.
        """
        chunk = self.chunk
        last = min(limit, self.full_reach(held, full)) // chunk * chunk
        for end in range(last, reuse, -chunk):
            if all(self._legal(rule, held.get(rule.name, ()), end) for rule in self._rules):
                return end
        return 0

    def full_reach(self, held: Mapping[str, Spans], full: int) -> int:
        """Return how far FULL reaches without a hole: by L2, then by what is `held`."""
        first = full // self.chunk * self.chunk
        base = next(rule.name for rule in self._rules if rule.base)
        return max([full, *(end for start, end in held.get(base, ()) if start <= first)])

    def _legal(self, rule: TreeComponent, held: Spans, end: int) -> bool:
        """Say whether a rule other than the base has what it needs for this endpoint."""
        if rule.base:
            return True
        if rule.snapshot:
            return covers(held, end, end)
        page = self._page
        return all(
            covers(held, first // page * page, -(-last // page) * page)
            for first, last in rule.need(end)
        )

    def objects(self, endpoint: int, full: int) -> Iterator[tuple[str, int, int, int]]:
        """Return (component, chunk, start, end) of each object that a reuse up to `endpoint` needs.

        Of a window's chunks only the pages that the endpoint needs are read, so that an object which
        begins later than its chunk serves as well.
        """
        chunk, page = self.chunk, self._page
        if not endpoint:
            return
        for rule in self._rules:
            if rule.snapshot:
                yield rule.name, endpoint // chunk - 1, endpoint, endpoint
            elif rule.base:
                for index in range(full // chunk, endpoint // chunk):
                    yield rule.name, index, index * chunk, (index + 1) * chunk
            else:
                for start, end in rule.need(endpoint):
                    for index in range(start // chunk, -(-end // chunk)):
                        first = max(index * chunk, start // page * page)
                        last = min((index + 1) * chunk, -(-end // page) * page)
                        yield rule.name, index, first, last
