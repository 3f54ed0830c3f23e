"""Count instructions instead of time: the multi-turn workload under callgrind, where time is noisy.

    valgrind --tool=callgrind --instr-atstart=no python -m banyankv.benchmarks.counted FULL 200

Starting takes a minute (nothing is counted then). 1,200 turns fill the pool; the given number of
turns after them is counted, without garbage collection. "I refs" divided by the turns is the figure.
Needs `callgrind_control`, which comes with valgrind. valgrind counts large copies byte by byte, so
the prompt that the workload copies for each turn shows as tens of thousands. It is also so slow that
every call finds the millisecond over after which it yields, so each turn contains four or five
checkpoints of trio, which otherwise come once in some eight turns.
"""

from __future__ import annotations

import argparse
import gc
import os

import trio

from ..runtime.cache import open_cache
from . import workload
from .models import MODELS, configure, has_states
from .turns import Run

PAGE = 16
WARM_TURNS = 1200


async def count(model: str, turns: int) -> None:
    """Run the workload, and have the last `turns` of it counted."""
    order = workload.turn_order("uniform", workload.SESSIONS, workload.TURNS)
    tokens = workload.session_tokens(workload.SESSIONS, workload.TURNS)
    config = configure(
        model,
        PAGE,
        workload.pool_tokens(workload.SESSIONS, workload.TURNS),
        workload.pool_states(workload.SESSIONS, workload.TURNS),
    )
    run = Run(order[:WARM_TURNS], tokens, states=has_states(model))
    async with open_cache(config) as cache:
        await run.through(cache, at_once=False)
        gc.disable()
        await _instrumentation("on")
        await run.more(cache, order[WARM_TURNS : WARM_TURNS + turns])
        await _instrumentation("off")


async def _instrumentation(state: str) -> None:
    await trio.run_process(["callgrind_control", "-i", state, str(os.getpid())])


def main() -> None:
    """Take the model and the number of turns from the command line."""
    parser = argparse.ArgumentParser(description="count instructions under callgrind")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("turns", type=int)
    arguments = parser.parse_args()
    trio.run(count, arguments.model, arguments.turns)


if __name__ == "__main__":
    main()
