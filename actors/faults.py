"""Faults as data: a seeded, serialisable plan of where, when and what, and the device that obeys it."""

from __future__ import annotations

import enum
import random
from fnmatch import fnmatchcase

import msgspec

from ..errors import BanyanError, ConfigError
from .arguments import is_number, is_whole, member

MESSAGE = "message"
"""The `where` of a message's edge, between sender and receiver."""

COPY = "copy"
"""The `where` of a batch of copies between tiers."""


class FaultKind(enum.StrEnum):
    """What goes wrong."""

    FAIL = "fail"
    DELAY = "delay"
    DROP = "drop"
    DUPLICATE = "duplicate"
    CRASH = "crash"
    PARTIAL = "partial"
    CORRUPT = "corrupt"
    HANG = "hang"


_POSSIBLE = {
    MESSAGE: (
        FaultKind.FAIL,
        FaultKind.DELAY,
        FaultKind.DROP,
        FaultKind.DUPLICATE,
        FaultKind.CRASH,
    ),
    # a batch has an asker: it cannot vanish
    COPY: tuple(kind for kind in FaultKind if kind is not FaultKind.DROP),
}


class InjectedFault(BanyanError):
    """A fault plan said so."""


class InjectedCrash(Exception):
    """What a handler that a fault plan crashes is taken to have raised; not a refusal."""


class Fault(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One kind of fault: at which places, at which of their matches, and what.

    At a message's edge, `sender` (`outside` for none), `receiver` and `message` (a type's name) are
    patterns as in file names; for a copy `key` is one, for `L1-L2` or `L2-L1`. The first `nth` - 1
    matches are spared; each further one is hit with `probability`, until it was hit `times` times
    (0: no end). `seconds` is the length of a delay. Raises ConfigError for what would never fire.
    """

    what: FaultKind
    where: str = MESSAGE
    sender: str = "*"
    receiver: str = "*"
    message: str = "*"
    key: str = "*"
    nth: int = 1
    probability: float = 1.0
    times: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.where not in _POSSIBLE:
            raise ConfigError(f"a fault is where {' or '.join(_POSSIBLE)} is, not {self.where!r}")
        member(f"a {self.where}'s fault", self.what, _POSSIBLE[self.where])
        for pattern in (self.sender, self.receiver, self.message, self.key):
            if not isinstance(pattern, str) or not pattern:
                raise ConfigError(f"{self!r}: patterns are words, not {pattern!r}")
        edge = (self.sender, self.receiver, self.message)
        if (self.key != "*") if self.where == MESSAGE else (edge != ("*", "*", "*")):
            raise ConfigError(
                f"{self!r}: a message is chosen by sender, receiver and message, a copy by key"
            )
        if not (
            is_whole(self.nth, 1)
            and is_whole(self.times, 0)
            and is_number(self.probability, 0, 1)
            and is_number(self.seconds, 0)
        ):
            raise ConfigError(
                f"{self!r}: nth is at least 1, times and seconds are not negative, "
                f"probability is between 0 and 1"
            )


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults and the seed of their chances; the same plan on the same run does the same."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for fault in self.faults:
            if not isinstance(fault, Fault):
                raise ConfigError(f"a fault plan holds Faults, not {fault!r}")

    def to_json(self) -> bytes:
        """Write the plan down."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> FaultPlan:
        """Read a plan; raises ConfigError saying what is wrong with it."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(f"not a fault plan: {error}") from error


class FaultAction(msgspec.Struct, frozen=True):
    """What is to go wrong now."""

    what: FaultKind
    seconds: float
    fault: int
    """The fault's place in its plan."""


class Faults:
    """Decides, place by place, whether something goes wrong; without a plan nothing does."""

    def __init__(self, plan: FaultPlan | None) -> None:
        self.plan = plan or FaultPlan()
        # a generator of its own for each fault, so that one more fault does not shift the others
        self._chances = [
            random.Random(f"{self.plan.seed}:{index}")  # noqa: S311 - chances, not secrets
            for index in range(len(self.plan.faults))
        ]
        self._matches = [0] * len(self.plan.faults)
        self._hits = [0] * len(self.plan.faults)

    def __repr__(self) -> str:
        return f"<Faults {len(self.plan.faults)} planned, {sum(self._hits)} done>"

    def decide(self, where: str, key: str) -> FaultAction | None:
        """Return what goes wrong at a place of some room, or None; each question counts as a match."""
        return self._decide(
            [
                index
                for index, fault in enumerate(self.plan.faults)
                if fault.where == where and fnmatchcase(key, fault.key)
            ]
        )

    def at_edge(self, sender: str, receiver: str, message: str) -> FaultAction | None:
        """Return what goes wrong with a message."""
        return self._decide(
            [
                index
                for index, fault in enumerate(self.plan.faults)
                if fault.where == MESSAGE
                and fnmatchcase(sender or "outside", fault.sender)
                and fnmatchcase(receiver, fault.receiver)
                and fnmatchcase(message, fault.message)
            ]
        )

    def may_delay(self, receiver: str) -> bool:
        """Say whether some message to this actor may still be delayed."""
        return any(
            fault.where == MESSAGE
            and fault.what is FaultKind.DELAY
            and fnmatchcase(receiver, fault.receiver)
            and not self._spent(index)
            for index, fault in enumerate(self.plan.faults)
        )

    def _spent(self, index: int) -> bool:
        times = self.plan.faults[index].times
        return times > 0 and self._hits[index] >= times

    def _decide(self, matching: list[int]) -> FaultAction | None:
        action: FaultAction | None = None
        for index in matching:
            fault = self.plan.faults[index]
            self._matches[index] += 1
            if self._matches[index] < fault.nth or self._spent(index):
                continue
            # drawn for each match, taken or not: the chances of one fault depend on nothing else
            hit = self._chances[index].random() < fault.probability
            if hit and action is None:
                self._hits[index] += 1
                action = FaultAction(fault.what, fault.seconds, index)
        return action
