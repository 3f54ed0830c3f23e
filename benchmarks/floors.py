"""What the work itself costs on this machine, without a cache around it.

A floor walks the same bytes: it compares the tokens, looks one child up for each node, copies the
page ids. Nothing that answers the same question can be cheaper in this interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..spec import PAGE_ID_BYTES, TOKEN_BYTES


class BarePath:
    """A chain of edges as dictionaries and bytes, each with the page ids that belong to it."""

    def __init__(self, edges: Sequence[bytes], page: int) -> None:
        self._width = page * TOKEN_BYTES
        self._children = [{edge[: self._width]: edge} for edge in edges]
        self._ids = [bytes(len(edge) // self._width * PAGE_ID_BYTES) for edge in edges]

    def walk(self, key: bytes, nodes: int | None = None) -> bytes:
        """Follow `key` over the first `nodes` edges (all by default); answer the page table."""
        at, width, matched = 0, self._width, 0
        for children in self._children[:nodes]:
            edge = children.get(key[at : at + width])
            if edge is None or not key.startswith(edge, at):
                break
            at += len(edge)
            matched += 1
        return b"".join(self._ids[:matched])


def cut(tokens: bytes, step: int) -> list[bytes]:
    """Cut packed tokens into edges of `step` tokens."""
    width = step * TOKEN_BYTES
    return [tokens[at : at + width] for at in range(0, len(tokens), width)]
