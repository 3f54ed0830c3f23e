"""Where a reuse out of the store could end: the component rule, on chunks.

A legal endpoint of a component is a chunk's end for which the store has every chunk that the
component's need touches. The hit is the deepest endpoint legal for all of them, never the least of
their deepest ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...components.contract import TreeComponent
from ...spec import PAGE_ID_BYTES
from ...tiers.messages import StoreItem


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

    def wanted(self, count: int, full: int, reuse: int) -> dict[str, tuple[int, ...]]:
        """Answer the chunks worth asking for, per component, of a prefix with `count` whole chunks."""
        chunk = self.chunk
        first = reuse // chunk
        wanted: dict[str, tuple[int, ...]] = {}
        for rule in self._rules:
            if rule.base:
                wanted[rule.name] = tuple(range(full // chunk, count))
            elif rule.snapshot:
                wanted[rule.name] = tuple(range(first, count))
            else:
                chunks: set[int] = set()
                for index in range(first, count):
                    chunks.update(self._touched(rule, (index + 1) * chunk))
                wanted[rule.name] = tuple(sorted(chunks))
        return wanted

    def _touched(self, rule: TreeComponent, boundary: int) -> Iterator[int]:
        for start, end in rule.need(boundary):
            yield from range(start // self.chunk, -(-end // self.chunk))

    def deepest(
        self, present: Mapping[str, frozenset[int]], count: int, full: int, reuse: int
    ) -> int:
        """Answer the deepest endpoint beyond `reuse`, 0 where there is none."""
        chunk = self.chunk
        for index in range(min(count, self.full_reach(present, full) // chunk) - 1, -1, -1):
            end = (index + 1) * chunk
            if end <= reuse:
                return 0
            if all(self._legal(rule, present.get(rule.name), end) for rule in self._rules):
                return end
        return 0

    def full_reach(self, present: Mapping[str, frozenset[int]], full: int) -> int:
        """Answer how far FULL reaches without a hole: by the tiers above, then by the store."""
        index = full // self.chunk
        base = next(rule.name for rule in self._rules if rule.base)
        have = present.get(base, frozenset())
        while index in have:
            index += 1
        return max(full, index * self.chunk)

    def _legal(self, rule: TreeComponent, present: frozenset[int] | None, end: int) -> bool:
        """Say whether the store has what a rule other than the base needs for this endpoint."""
        have = present or frozenset()
        if rule.snapshot:
            return end // self.chunk - 1 in have
        return rule.base or all(index in have for index in self._touched(rule, end))

    def objects(self, endpoint: int, full: int) -> Iterator[tuple[str, int, int, int]]:
        """Answer (component, chunk, start, end) of each object that a reuse up to `endpoint` needs.

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
