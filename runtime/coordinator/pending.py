"""What waits inside the cache actor: acquires for copies and the store, extends for room."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from ...actors import ReplyToken, Trace
from ..messages import Acquire, Extend
from .leases import LeaseRecord


class PendingAcquire(msgspec.Struct, eq=False):
    """An acquire on its way: what it has seen so far, and the operations it waits for.

    `device` and `host` are the boundaries at its first look; `searched` says that the store was asked
    for it, `full` how far FULL reaches there; `settle_for_device` that lower tiers are no longer worth
    waiting for. `started` is when it came (ns) where its `trace` is sampled.
    """

    msg: Acquire
    trace: Trace | None
    started: int
    token: Any = None
    record: LeaseRecord | None = None
    ops: set[int] = set()
    searched: bool = False
    settle_for_device: bool = False
    device: int = -1
    host: int = -1
    full: int = 0


class RoomWaiter:
    """An extend that waits for pages, first come first served; `scope` ends its timer."""

    __slots__ = ("id", "msg", "record", "scope", "token")

    def __init__(self, id: int, msg: Extend, record: LeaseRecord, token: ReplyToken) -> None:
        self.scope = trio.CancelScope()
        self.id = id
        self.msg = msg
        self.record = record
        self.token = token
