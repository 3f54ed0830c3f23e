"""What a system shows of itself: a tree to print and figures to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .dead_letters import DeadLetterStatistics
from .gate import describe
from .mailbox import MailboxStatistics

if TYPE_CHECKING:
    from .ref import Ref
    from .system import ActorSystem


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one actor. `handle_ns` is measured only while hops are observed."""

    path: str
    handled: int
    restarts: int
    open_replies: int
    handle_ns: int
    mailbox: MailboxStatistics


class SystemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a system, actors in order of their start."""

    actors: tuple[ActorStatistics, ...]
    dead_letters: DeadLetterStatistics


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One actor or supervisor and what is below it; `str` draws it."""

    path: str
    kind: str
    state: str
    statistics: ActorStatistics | None = None
    children: tuple[TreeNode, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_draw(self, "", ""))


def _draw(node: TreeNode, first: str, rest: str) -> list[str]:
    name = node.path.rsplit("/", 1)[-1] or "/"
    line = f"{first}{name} ({node.kind})"
    figures = node.statistics
    if figures is not None:
        line += f" {node.state}, {figures.handled} handled, {figures.mailbox.depth} queued"
        if figures.restarts:
            line += f", {figures.restarts} restarts"
    lines = [line]
    for child in node.children:
        last = child is node.children[-1]
        lines += _draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
    return lines


def actor_statistics(ref: Ref[Any]) -> ActorStatistics:
    """Read the figures of one actor."""
    return ActorStatistics(
        path=ref.path,
        handled=ref.handled,
        restarts=ref.restarts,
        open_replies=len(ref.tokens),
        handle_ns=ref.handle_ns,
        mailbox=ref.mailbox.statistics(),
    )


def system_statistics(system: ActorSystem) -> SystemStatistics:
    """Read the figures of a system."""
    return SystemStatistics(
        actors=tuple(actor_statistics(ref) for ref in system.refs.values()),
        dead_letters=system.dead_letters.statistics(),
    )


def system_tree(system: ActorSystem) -> TreeNode:
    """Draw the system by paths: an actor is below whom it was spawned under."""
    below: dict[str, list[str]] = {}
    for path in system.paths():
        above = path.rsplit("/", 1)[0] or "/"
        below.setdefault(above, []).append(path)

    def node(path: str) -> TreeNode:
        children = tuple(node(child) for child in below.get(path, ()))
        ref = system.refs.get(path)
        if ref is None:
            return TreeNode(path=path, kind="supervisor", state="", children=children)
        kind = type(ref.actor).__name__ if ref.actor is not None else "no actor"
        return TreeNode(
            path=path,
            kind=kind,
            state=describe(ref.gate),
            statistics=actor_statistics(ref),
            children=children,
        )

    return node("/")
