"""The envelope: a message on its way through a mailbox, with all that travels beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cell import Cell
    from .faults import FaultAction
    from .observer import Trace
    from .reply import ReplyToken


class Envelope:
    """One queued message: who sent it, who waits for its answer, until when, for which request.

    `sender` is the sending actor's path, empty for a sender outside the system; it is known only while
    somebody watches. `asker` is the coordinator whose operation waits for the answer, so that a cycle
    can be named. `deadline` and `due` are trio times: not handled after the one, nor before the other.
    """

    __slots__ = (
        "asker",
        "control",
        "deadline",
        "due",
        "fault",
        "msg",
        "queued",
        "reply",
        "sender",
        "trace",
    )

    def __init__(
        self,
        msg: Any,
        reply: ReplyToken,
        *,
        trace: Trace | None,
        deadline: float,
        sender: str = "",
        asker: Cell | None = None,
        control: bool = False,
    ) -> None:
        self.msg = msg
        self.reply = reply
        self.trace = trace
        self.deadline = deadline
        self.sender = sender
        self.asker = asker
        self.control = control
        self.due = -math.inf
        self.fault: FaultAction | None = None
        self.queued = 0

    def __repr__(self) -> str:
        return f"<Envelope {type(self.msg).__name__} from {self.sender or 'outside'}>"
