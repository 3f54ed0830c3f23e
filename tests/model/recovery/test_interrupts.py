"""Ctrl-C that is caught and carried on from leaks no lease unseen: SIGINT from another process, at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import signal, sys, warnings
import trio
from banyankv import CacheConfig, ModelSpec, PagedSpec, open_cache

MODEL = ModelSpec(name="m", page_size=2, components=(PagedSpec(name="full"),))

async def turn(cache, number):
    async with await cache.acquire([number % 7, 1, 2, 3, 4]) as lease:
        await lease.extend(5 - lease.extent)
        await lease.publish()

async def main():
    interrupts = 0
    config = CacheConfig(model=MODEL, l1={"full": 64}, l2={"full": 64}, dispatch=sys.argv[1])
    async with open_cache(config) as cache:
        while interrupts < 150:
            try:
                # each line asks for one interrupt: it ends the loop, wherever it hits
                print(interrupts, flush=True)
                number = 0
                while True:
                    number += 1
                    await turn(cache, number)
            except KeyboardInterrupt:
                interrupts += 1
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        stats = await cache.stats()
        # Python itself may be interrupted between the answer and the block that takes it: then the
        # lease is dropped, which is said, and stays locked
        if stats.leases != len(dropped) or len(dropped) > 5 or stats.recoveries:
            print("leaked", stats.leases, len(dropped), stats.recoveries, flush=True)
            sys.exit(3)
        await cache.settle()
        await cache.check()

# whoever starts the tests in the background may have had them ignore SIGINT
signal.signal(signal.SIGINT, signal.default_int_handler)
with warnings.catch_warnings(record=True) as dropped:
    warnings.simplefilter("always", ResourceWarning)
    trio.run(main)
"""


def test_interrupts_from_another_process_leak_no_lease_unseen(dispatch: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dispatch], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line.strip())
            child.send_signal(signal.SIGINT)
    assert child.returncode == 0, lines[-3:]
    assert lines == [str(n) for n in range(150)]
