"""Ctrl-C: a SIGINT from another process never tears a step or an operation."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import signal, sys
import trio
from banyankv.actors import Coordinator, Leaf, Message, handles, open_system

class Move(Message[int], frozen=True):
    pass

class Pair(Leaf):
    def __init__(self):
        super().__init__()
        self.a = self.b = 0

    @handles(Move)
    def move(self, msg):
        self.a += 1
        for _ in range(20):
            pass
        self.b += 1
        return self.a

class Above(Coordinator):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = one, two

    @handles(Move)
    async def move(self, msg):
        await self.one.ask(msg)
        for _ in range(20):
            pass
        await self.two.ask(msg)

async def main():
    interrupts = 0
    async with open_system("t", dispatch=sys.argv[1]) as system:
        one = await system.spawn(Pair, name="one")
        two = await system.spawn(Pair, name="two")
        above = await system.spawn(lambda: Above(one, two), name="above")
        while interrupts < 100:
            try:
                # each line asks for one interrupt: it ends the loop, wherever it hits
                print(interrupts, flush=True)
                while True:
                    await above.ask(Move())
                    if sys.argv[1] == "direct":
                        above.call(Move())
                    await trio.lowlevel.checkpoint()
            except KeyboardInterrupt:
                interrupts += 1
            with trio.CancelScope(shield=True):
                a, b = one.actor, two.actor
                if sys.argv[1] == "mailbox":
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    while above.gate & 1:
                        await trio.lowlevel.cancel_shielded_checkpoint()
            if not a.a == a.b == b.a == b.b:
                print("torn", a.a, a.b, b.a, b.b, flush=True)
                sys.exit(3)
            if one.restarts or two.restarts or above.restarts:
                sys.exit(4)

# whoever starts the tests in the background may have had them ignore SIGINT
signal.signal(signal.SIGINT, signal.default_int_handler)
trio.run(main)
"""


def test_interrupts_from_another_process_tear_nothing(dispatch: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dispatch], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line.strip())
            child.send_signal(signal.SIGINT)
    assert child.returncode == 0, lines[-3:]
    assert lines == [str(n) for n in range(100)]
