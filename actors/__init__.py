"""The actor kernel: supervised actors on trio whose messages are direct calls where they can be."""

from .actor import Actor, Coordinator, Down, Leaf, handles
from .context import protected_context
from .dead_letters import DeadLetter, Reason
from .faults import (
    Fault,
    FaultAction,
    FaultKind,
    FaultPlan,
    Faults,
    InjectedCrash,
    InjectedFault,
)
from .journal import Journal, read_journal
from .message import Message, Reply
from .observer import Fact, Hop, Observer, Trace
from .ref import Ref
from .reply import Phase, ReplyToken
from .specs import Backoff, ChildSpec, Restart, Strategy, SupervisorSpec
from .supervision import Supervisor
from .system import ActorSystem, open_system

__all__ = [
    "Actor",
    "ActorSystem",
    "Backoff",
    "ChildSpec",
    "Coordinator",
    "DeadLetter",
    "Down",
    "Fact",
    "Fault",
    "FaultAction",
    "FaultKind",
    "FaultPlan",
    "Faults",
    "Hop",
    "InjectedCrash",
    "InjectedFault",
    "Journal",
    "Leaf",
    "Message",
    "Observer",
    "Phase",
    "Reason",
    "Ref",
    "Reply",
    "ReplyToken",
    "Restart",
    "Strategy",
    "Supervisor",
    "SupervisorSpec",
    "Trace",
    "handles",
    "open_system",
    "protected_context",
    "read_journal",
]
