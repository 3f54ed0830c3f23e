"""Hunt for faults by random histories: play them, and make a failing one as short as can be.

    python -m tests.model.hunt [SECONDS] [FIRST SEED] [MODEL] [CRASHES]

plays histories for so long and prints each fault with the shortest script that shows it; MODEL is one
as in `script_of`, or `any`, CRASHES the chance that actors crash in a history.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pprint
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import torch  # noqa: F401 - takes seconds, which are not to be those of the first history
import trio
import trio.testing

from .driving import simulated
from .player import Player
from .script import Script, script_of

PATIENCE = 30.0
"""Seconds after which a history is stuck: it takes far less than one."""


class Stuck(AssertionError):
    """A history does not come to its end."""


def play(script: Script) -> None:
    """Play one history from its beginning to its end; raises what went wrong first."""
    try:
        with simulated(script.seed, script.object_tokens):
            clock = trio.testing.MockClock()
            trio.run(_main, script, clock, clock=clock)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _main(script: Script, clock: trio.testing.MockClock) -> None:
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    late = threading.Timer(PATIENCE, token.run_sync_soon, (scope.cancel,))
    late.start()
    try:
        with scope:
            await Player(script, clock).play()
        if scope.cancelled_caught:
            raise Stuck(f"not over after {PATIENCE:g} s")
    finally:
        late.cancel()


def fault_of(script: Script) -> str:
    """What goes wrong in a history, in one line; empty for nothing."""
    try:
        play(script)
    except Exception as error:  # noqa: BLE001 - whatever it is, that is the finding
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/model/" in f.filename]
        where = frames[-1].name if frames else ""
        return f"{type(error).__name__} in {where}: {error}"
    return ""


def shortest(script: Script, budget: float = 60.0) -> Script:
    """Leave out steps, and simplify dice, as long as the same kind of fault is found."""
    kind = fault_of(script).split(":")[0]
    until = time.monotonic() + budget

    def still(smaller: Script) -> bool:
        return fault_of(smaller).split(":")[0] == kind

    def attempts() -> Iterator[Script]:
        size = max(1, len(script.steps) // 2)
        while size:
            for at in range(0, len(script.steps), size):
                yield dataclasses.replace(
                    script, steps=script.steps[:at] + script.steps[at + size :]
                )
            size //= 2
        for at, step in enumerate(script.steps):
            for name in "abcd":
                for small in (0, 1, 2, 3):
                    if small < getattr(step, name):
                        simpler = step._replace(**{name: small})
                        steps = (*script.steps[:at], simpler, *script.steps[at + 1 :])
                        yield dataclasses.replace(script, steps=steps)

    found = True
    while found:
        found = False
        for smaller in attempts():
            if time.monotonic() > until:
                return script
            if still(smaller):
                script, found = smaller, True
                break
    return script


def hunt(seconds: float, first: int, only: str | None, crashes: float) -> int:
    """Play histories for so long; answer how many went wrong."""
    until, seed, faults, kinds = time.monotonic() + seconds, first, 0, set[str]()
    while time.monotonic() < until:
        script = script_of(seed, only, crashes)
        fault = fault_of(script)
        if fault:
            faults += 1
            if fault.split(":")[0] not in kinds:
                kinds.add(fault.split(":")[0])
                print(f"--- seed {seed}: {fault}", flush=True)
                small = shortest(script)
                print(fault_of(small))
                pprint.pp(small)
            else:
                print(f"--- seed {seed} too: {fault[:150]}", flush=True)
        seed += 1
    print(f"{seed - first} histories from seed {first}: {faults} faults")
    return faults


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        wrong = hunt(
            float(arguments[0]) if arguments else 60.0,
            int(arguments[1]) if len(arguments) > 1 else 0,
            arguments[2] if arguments[2:] and arguments[2] != "any" else None,
            float(arguments[3]) if len(arguments) > 3 else 0.3,
        )
        sys.exit(bool(wrong))
