"""Random histories over the public API, judged after every step by the flat reference model.

Small alphabets and tiny pools make collisions dense. `BANYANKV_HYPOTHESIS=deep` runs many more.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pytest
from banyankv import Namespace, Tier
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .driving import TrioThread
from .engine import config_of, model_of
from .harness import Bench, run_bench

DEEP = os.environ.get("BANYANKV_HYPOTHESIS") == "deep"
SETTINGS = settings(
    max_examples=600 if DEEP else 30,
    stateful_step_count=50 if DEEP else 35,
    deadline=None,
    print_blob=True,
    suppress_health_check=tuple(HealthCheck),
)
LONGEST = 40
SPACES = (Namespace(), Namespace(salt=""), Namespace(salt="a"))
PICK = st.integers(0, 63)


class Machine(RuleBasedStateMachine):
    """A cache and some requests; subclasses say which components and how much room."""

    components: ClassVar[dict[str, bool]] = {}
    with_l2 = True

    def __init__(self) -> None:
        super().__init__()
        self.thread: TrioThread | None = None
        self.broken = False
        self.history: list[tuple[int, ...]] = [(0,) * 6]

    @initialize(
        page=st.sampled_from((1, 2, 4)),
        window=st.sampled_from((1, 2, 3, 5, 8)),
        chunk=st.sampled_from((2, 3, 4, 8)),
        pages=st.sampled_from((8, 12, 24, 40)),
        slots=st.sampled_from((1, 2, 3, 6, 12)),
        host=st.sampled_from((8, 16, 64, 256)),
    )
    def open(self, page: int, window: int, chunk: int, pages: int, slots: int, host: int) -> None:
        kinds = self.components
        model = model_of(
            page,
            window=window if kinds.get("swa") else 0,
            chunk=chunk if kinds.get("chunked") else 0,
            states=bool(kinds.get("mamba")),
        )
        room = {c.name: slots if c.rule == "mamba" else pages for c in model.components}
        config = config_of(model, room, host if self.with_l2 else None)
        self.thread = TrioThread(lambda started: run_bench(config, started))
        self.bench: Bench = self.thread.value

    # -- helpers ---------------------------------------------------------------------------------

    def do(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function of the bench, sync or async, in the cache's thread."""

        async def run() -> Any:
            result = function(*args, **kwargs)
            return await result if hasattr(result, "__await__") else result

        assert self.thread is not None
        try:
            return self.thread.call(run)
        except BaseException:
            self.broken = True
            raise

    def prompt(self, base: int, cut: int, tail: list[int]) -> tuple[int, ...]:
        """A prompt that shares a beginning with something that was asked before."""
        known = self.history[base % len(self.history)]
        tokens = (known[: cut % (len(known) + 1)] + tuple(tail))[:LONGEST] or (0,)
        self.history.append(tokens)
        return tokens

    def turn(self, pick: int) -> Any:
        return self.bench.turns[pick % len(self.bench.turns)]

    # -- rules -----------------------------------------------------------------------------------

    @rule(space=PICK, base=PICK, cut=PICK, tail=st.lists(st.integers(0, 2), max_size=10))
    def acquire(self, space: int, base: int, cut: int, tail: list[int]) -> None:
        tokens = self.prompt(base, cut, tail)
        self.do(self.bench.acquire, SPACES[space % 8 % 3], tokens)

    @rule(
        base=PICK,
        cut=PICK,
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=10),
        step=st.integers(1, 12),
        keep=st.booleans(),
    )
    def whole_turn(self, base: int, cut: int, tail: list[int], step: int, keep: bool) -> None:
        """Acquire, compute all of the prompt in chunks, publish and release."""
        turn = self.do(self.bench.acquire, SPACES[0], self.prompt(base, cut, tail))
        if turn is None:
            return
        while turn.computed < len(turn.tokens):
            count = min(step, len(turn.tokens) - turn.computed)
            if not self.do(self.bench.extend, turn, count, keep):
                break
            self.do(self.bench.settled)
        self.do(self.bench.publish, turn, None)
        self.do(self.bench.settled)
        self.do(self.bench.release, turn)

    @rule(space=PICK, base=PICK, cut=PICK, tail=st.lists(st.integers(0, 2), max_size=10))
    def try_acquire(self, space: int, base: int, cut: int, tail: list[int]) -> None:
        tokens = self.prompt(base, cut, tail)
        self.do(self.bench.try_acquire, SPACES[space % 8 % 3], tokens)

    @precondition(lambda self: self.thread and self.bench.turns)
    @rule(pick=PICK, count=st.integers(1, 12), keep=st.booleans())
    def extend(self, pick: int, count: int, keep: bool) -> None:
        turn = self.turn(pick)
        left = len(turn.tokens) - turn.lease.extent
        if left > 0:
            self.do(self.bench.extend, turn, min(count, left), keep)

    @precondition(lambda self: self.thread and self.bench.turns)
    @rule(pick=PICK, new=st.lists(st.integers(0, 2), min_size=1, max_size=4), keep=st.booleans())
    def decode(self, pick: int, new: list[int], keep: bool) -> None:
        turn = self.turn(pick)
        if turn.computed < len(turn.tokens) or len(turn.tokens) + len(new) > LONGEST:
            return
        for token in new:
            turn.tokens.append(token)
            turn.lease.append([token])
            if not self.do(self.bench.extend, turn, 1, keep):
                return
            self.do(self.bench.settled)
        self.history.append(tuple(turn.tokens))

    @precondition(lambda self: self.thread and self.bench.turns)
    @rule(pick=PICK, count=st.integers(1, 6), keep=st.integers(0, 6))
    def draft(self, pick: int, count: int, keep: int) -> None:
        """Room for drafts, all of them rejected."""
        turn = self.turn(pick)
        if turn.computed == len(turn.tokens) and self.do(self.bench.extend, turn, count, False):
            self.do(self.bench.settled)
            self.do(turn.lease.trim, count)

    @precondition(lambda self: self.thread and self.bench.turns)
    @rule(pick=PICK, whole=st.booleans(), part=PICK)
    def publish(self, pick: int, whole: bool, part: int) -> None:
        turn = self.turn(pick)
        upto = None if whole else part % (turn.publishable // turn.rules.page + 1) * turn.rules.page
        self.do(self.bench.publish, turn, upto)

    @precondition(lambda self: self.thread and self.bench.turns)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        self.do(self.bench.release, self.turn(pick))

    @precondition(lambda self: self.thread is not None)
    @rule(component=PICK, count=st.sampled_from((1, 1, 2, 4, 8, 1000)), lower=st.booleans())
    def evict(self, component: int, count: int, lower: bool) -> None:
        names = self.bench.rules.names
        tier = Tier.L2 if lower and self.with_l2 else Tier.L1
        self.do(self.bench.evict, names[component % len(names)], count, tier)

    @precondition(lambda self: self.thread is not None)
    @rule()
    def stall(self) -> None:
        self.bench.gate.stall()

    @precondition(lambda self: self.thread is not None)
    @rule(failing=st.sampled_from((0, 0, 0, 1)))
    def unstall(self, failing: int) -> None:
        if self.bench.gate.stalled:
            self.bench.gate.failing = min(failing, self.bench.gate.waiting)
        self.do(self.release_gate)

    def release_gate(self) -> None:
        self.bench.gate.let_go()

    @precondition(lambda self: self.thread and self.bench.pending)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        self.do(self.bench.cancel, pick)

    @precondition(lambda self: self.thread and not self.bench.turns and not self.bench.gate.stalled)
    @rule()
    def flush(self) -> None:
        if not self.bench.pending:
            self.do(self.bench.flush)

    # -- after every step, and at the end ----------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        if self.thread is not None:
            self.do(self.bench.settled)

    def teardown(self) -> None:
        if self.thread is None:
            return
        try:
            if not self.broken:  # else the step that failed is what there is to say
                self.do(self.bench.finish)
        finally:
            self.do(self.bench.close)
            self.thread.join()


@pytest.mark.parametrize("host", [False, True], ids=["l1", "l1+l2"])
@pytest.mark.parametrize(
    "kinds",
    ["full", "swa", "chunked", "mamba", "swa+mamba", "swa+chunked", "swa+chunked+mamba"],
)
def test_random_histories(kinds: str, host: bool) -> None:
    """After every step the invariants hold and the hit is what the reference model says."""

    class Sized(Machine):
        components = dict.fromkeys(kinds.split("+"), True)
        with_l2 = host

    run_state_machine_as_test(Sized, settings=SETTINGS)
