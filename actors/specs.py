"""What is to be supervised, and how: the specifications of actors and supervisors."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

import msgspec

from ..errors import ConfigError
from .actor import Actor
from .arguments import is_number, is_whole, member


class Restart(enum.StrEnum):
    """When a child that ended is started anew."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # after a crash
    TEMPORARY = "temporary"  # never


class Strategy(enum.StrEnum):
    """Who else is started anew with a child: nobody, everybody, or who was started after it."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long a restart waits, in seconds.

    `first` times `factor` for each recent restart, at most `most`, and up to the share `jitter` more,
    drawn from the system's seed.
    """

    first: float = 0.05
    factor: float = 2.0
    most: float = 5.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        times = (self.first, self.most, self.jitter)
        if not all(is_number(time, 0) for time in times) or not is_number(self.factor, 1):
            raise ConfigError(f"{self!r}: times and jitter are not negative, the factor at least 1")

    def delay(self, recent: int, rng: random.Random) -> float:
        """Return the wait before the restart that follows `recent` others."""
        # the exponent is capped because a float overflows long after `most` is reached
        base = min(self.first * self.factor ** min(recent, 64), self.most)
        # whole microseconds, as the journal's times
        return round(base * (1 + self.jitter * rng.random()), 6)


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An actor to start: the factory makes it anew for each life.

    `bound` is how many messages its mailbox holds per lane.
    """

    factory: Callable[[], Actor]
    name: str
    bound: int = 1024
    restart: Restart = Restart.PERMANENT
    stop_timeout: float = 5.0

    def __post_init__(self) -> None:
        member(f"{self.name}: restart", self.restart, Restart)
        if not is_whole(self.bound, 1):
            raise ConfigError(
                f"{self.name}: a mailbox holds a message at least, not {self.bound!r}"
            )
        if not is_number(self.stop_timeout, 0):
            raise ConfigError(
                f"{self.name}: stop_timeout is a number of seconds, not {self.stop_timeout!r}"
            )


class SupervisorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor to start, with its children in their order.

    More than `intensity` restarts within `period` seconds are too many: the supervisor stops its
    children and crashes itself, which is its own supervisor's to deal with.
    """

    name: str
    children: tuple[ChildSpec | SupervisorSpec, ...] = ()
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int = 5
    period: float = 10.0
    backoff: Backoff = Backoff()
    restart: Restart = Restart.PERMANENT

    def __post_init__(self) -> None:
        member(f"{self.name}: restart", self.restart, Restart)
        member(f"{self.name}: strategy", self.strategy, Strategy)
        if not is_whole(self.intensity, 0) or not is_number(self.period, 0):
            raise ConfigError(
                f"{self.name}: at most {self.intensity!r} restarts within {self.period!r} seconds "
                f"cannot be counted"
            )
