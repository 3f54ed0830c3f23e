"""Plays a script: each verb does one thing to the cache, with what there is at that moment."""

from __future__ import annotations

import random
from contextlib import nullcontext

import trio
import trio.testing
from banyankv import Closed, Namespace, Tier, open_cache

from .crasher import Crasher, Point
from .driving import Gate
from .engine import RULES, Turn
from .history_store import HistoryStore
from .script import Script, Step
from .surviving import L3, SurvivingBench

SPACES = (Namespace(), Namespace(salt=""), Namespace(salt="a"))


class Player:
    """A history under way: the bench of its cache, the prompts that were published, and the clock."""

    def __init__(self, script: Script, clock: trio.testing.MockClock) -> None:
        self.script = script
        self.config = script.config()
        self.clock = clock
        self.history_store = HistoryStore(script.object_tokens) if script.store else None
        self.known: list[tuple[int, ...]] = [(0,) * 2 * script.page]
        self.unit = max(1, script.page // 2)
        """Tokens of one letter: prompts differ at every half page."""
        self.longest = script.page * max(3, min(12, script.pages // 2))
        """Tokens of the longest prompt: two of them have room, seldom more."""
        self.crasher = Crasher()
        self.doomed = False
        self.bench: SurvivingBench

    async def play(self) -> None:
        """Take all steps, judge after each, and find nothing left at the end."""
        with self.crasher.at_work() if self.script.crashes else nullcontext():
            try:
                await self._play()
            except Closed:
                if not self.doomed:
                    raise

    async def _play(self) -> None:
        steps = list(self.script.steps)
        while True:
            self.crasher.disarm()
            gate = Gate()
            store = self.history_store.store if self.history_store else None
            async with (
                open_cache(self.config, before_copy=gate, store=store, rules=RULES) as cache,
                trio.open_nursery() as nursery,
            ):
                self.bench = SurvivingBench(cache, gate, nursery, self.history_store, self.crasher)
                self.bench.slices = 1 + self.script.seed % 4
                while steps:
                    step = steps.pop(0)
                    if step.verb == "restart":
                        break
                    if step.verb == "doom" and not steps:
                        self.doomed = True
                        await self.bench.doom()
                        nursery.cancel_scope.cancel()
                        return
                    await getattr(self, step.verb)(step)
                    await self.bench.settled()
                else:
                    await self.bench.finish()
                    nursery.cancel_scope.cancel()
                    return
                nursery.cancel_scope.cancel()
            if self.history_store and step.a % 2:
                self.history_store.let_go()

    # -- choosing ------------------------------------------------------------------------------------

    def prompt(self, base: int, cut: int, tail: int) -> tuple[int, ...]:
        """A prompt that shares a beginning with something that was asked before, often all of it."""
        known = self.known[-1 - (0, 0, 0, 1, 1, 2, 3, 7)[base % 8] % len(self.known)]
        dice = random.Random(tail)
        letters = [dice.randrange(3) for _ in range(1 + dice.randrange(8))]
        kept = len(known)
        if cut % 3 == 0:
            letters = letters[:1]
        elif cut % 3 == 1:
            kept = kept * (cut % 16) // 15
        new = tuple(letter for letter in letters for _ in range(self.unit))
        kept = min(kept, self.longest - self.script.page)
        return (known[:kept] + new)[: self.longest]

    async def publish_of(self, turn: Turn, upto: int | None) -> None:
        """Publish, and remember the prompt for who shall meet it."""
        if await self.bench.publish(turn, upto) > turn.lease.length:
            self.known.append(tuple(turn.tokens))

    def turn_of(self, pick: int) -> Turn | None:
        """Some turn whose lease no other task uses."""
        idle = [turn for turn in self.bench.turns if not turn.busy]
        return idle[pick % len(idle)] if idle else None

    def space(self, a: int) -> Namespace:
        """Mostly the same namespace, so that requests meet."""
        return SPACES[max(0, a % 16 - 13)]

    # -- requests ------------------------------------------------------------------------------------

    async def acquire(self, step: Step) -> None:
        self.bench.changes += 1
        deadline = 2.0 if step.a % 4 == 3 else None
        await self.bench.acquire(self.space(step.a), self.prompt(step.b, step.c, step.d), deadline)

    async def start(self, step: Step) -> Turn | None:
        """Acquire, and compute all of the prompt in chunks."""
        self.bench.changes += 1
        prompt = self.prompt(step.b, step.c, step.d)
        turn = await self.bench.acquire(self.space(step.a), prompt)
        if turn is None:
            return None
        stride = self.script.page * (1 + step.a % 3) if step.a % 4 else self.unit
        while turn.computed < len(turn.tokens):
            count = min(stride, len(turn.tokens) - turn.computed)
            if not await self.bench.extend(turn, count, step.a % 16 < 12):
                break
            await self.bench.rest()
        return turn

    async def turn(self, step: Step) -> None:
        """Start, publish and release."""
        turn = await self.start(step)
        if turn is not None:
            await self.publish_of(turn, None)
            if not self.bench.held:
                await self.bench.settled()
            await self.bench.release(turn)

    async def try_acquire(self, step: Step) -> None:
        self.bench.changes += 1
        await self.bench.try_acquire(self.space(step.a), self.prompt(step.b, step.c, step.d))

    async def batch(self, step: Step) -> None:
        """Several prompts of one scheduler step."""
        self.bench.changes += 1
        prompts = [self.prompt(step.b + n, step.c + n, step.d + n) for n in range(1 + step.a % 3)]
        await self.bench.batch(SPACES[0], prompts)

    async def hurry(self, step: Step) -> None:
        """Ask for something, and change one's mind after some checkpoints, while another turn ends."""
        self.bench.changes += 1
        turn = self.turn_of(step.a)
        left = len(turn.tokens) - turn.lease.extent if turn is not None else 0
        if step.a % 2 and turn is not None and left:
            count = min(left, 1 + step.b % (2 * self.unit))
            request = self.bench.ask_room(turn, count, 2.0, False, False)
        else:
            request = await self.bench.ask(SPACES[0], self.prompt(step.a, step.b, step.c))
        other = self.turn_of(step.c) if step.c % 4 else None
        if other is not None:
            self.bench.leave(other)
            await trio.testing.wait_all_tasks_blocked()
            self.bench.nursery.start_soon(other.lease.release)
        for _ in range(step.d % 24):
            await trio.lowlevel.checkpoint()
        request.scope.cancel()
        self.bench.pending.append(request)

    async def cancel(self, step: Step) -> None:
        if self.bench.pending:
            self.bench.changes += 1
            await self.bench.cancel(step.a)

    # -- turns in hand -------------------------------------------------------------------------------

    async def extend(self, step: Step) -> None:
        """Room for some of what is not computed yet: at once, or later within a deadline."""
        turn = self.turn_of(step.a)
        if turn is None:
            return
        self.bench.changes += 1
        left = len(turn.tokens) - turn.lease.extent
        count = min(left, 1 + step.b % 12 * self.unit)
        if left <= 0:
            return
        if step.c % 2:
            await self.bench.extend(turn, count, step.d % 2 == 0)
            return
        patience = 2.0 if step.c % 4 else 5.0
        request = self.bench.ask_room(turn, count, patience, step.d % 2 == 0, step.d % 4 < 2)
        await self.bench.answered(request)

    async def crowd(self, step: Step) -> None:
        """All turns ask at once for all that they lack, with one deadline; some leave if refused."""
        self.bench.changes += 1
        for place, turn in enumerate(self.bench.turns):
            left = len(turn.tokens) - turn.lease.extent
            if left > 0 and not turn.busy:
                leaves = bool(step.a >> place % 6 & 1)
                self.bench.pending.append(self.bench.ask_room(turn, left, 2.0, False, leaves))

    async def decode(self, step: Step) -> None:
        """Compute tokens that were generated, one at a time."""
        self.bench.changes += 1
        turn = await self.complete(step.a)
        if turn is None:
            return
        dice = random.Random(step.b)
        for _ in range(1 + step.b % (2 * self.unit)):
            if len(turn.tokens) >= self.longest:
                break
            token = dice.randrange(3)
            turn.tokens.append(token)
            turn.lease.append([token])
            if not await self.bench.extend(turn, 1, step.c % 2 == 0):
                return

    async def draft(self, step: Step) -> None:
        """Room for drafts, of which some are accepted: none, some, all."""
        self.bench.changes += 1
        turn = await self.complete(step.a)
        if turn is None:
            return
        dice = random.Random(step.d)
        drafts = [dice.randrange(3) for _ in range(1 + step.b % (3 * self.unit))]
        if len(turn.tokens) + len(drafts) > self.longest:
            return
        await self.bench.speculate(turn, drafts, step.c % 4 > 0, step.c % (len(drafts) + 1))

    async def complete(self, pick: int) -> Turn | None:
        """Some turn that has computed all tokens it has; None where there is none, or no room."""
        turn = self.turn_of(pick)
        if turn is None or turn.computed == len(turn.tokens):
            return turn
        left = len(turn.tokens) - turn.computed
        return turn if await self.bench.extend(turn, left, False) else None

    async def keep(self, step: Step) -> None:
        """Snapshot where the turn stands, also where it has been done before."""
        turn, rules = self.turn_of(step.a), self.bench.rules
        if turn is None or turn.computed % rules.page or turn.computed <= turn.lease.published:
            return
        if turn.lease.extent == turn.computed:
            self.bench.changes += 1
            await self.bench.keep(turn)

    async def publish(self, step: Step) -> None:
        turn = self.turn_of(step.a)
        if turn is not None:
            self.bench.changes += 1
            page = self.script.page
            part = step.b % (turn.publishable // page + 1) * page
            await self.publish_of(turn, None if step.c % 2 else part)

    async def release(self, step: Step) -> None:
        turn = self.turn_of(step.a)
        if turn is not None:
            self.bench.changes += 1
            await self.bench.release(turn)

    # -- the cache -----------------------------------------------------------------------------------

    async def evict(self, step: Step) -> None:
        self.bench.changes += 1
        names = self.bench.rules.names
        tier = Tier.L2 if step.c % 2 and self.config.l2 else Tier.L1
        count = (1, 1, 2, 4, 8, 1000)[step.b % 6]
        await self.bench.evict(names[step.a % len(names)], count, tier)

    async def demote(self, step: Step) -> None:
        """Take all that may go off L1."""
        self.bench.changes += 1
        await self.bench.evict(self.bench.rules.names[0], 1000, Tier.L1)

    async def flush(self, step: Step) -> None:
        if not (self.bench.turns or self.bench.pending or self.bench.held):
            self.bench.changes += 1
            await self.bench.flush()

    # -- crashes ---------------------------------------------------------------------------------------

    async def crash(self, step: Step) -> None:
        """Crash an actor, or two: at once, or at some message to come."""
        paths = [self.actor(step.a)]
        if step.d % 4 == 0:
            paths.append(self.actor(step.d // 4))
        if step.b % 3 == 0:
            await self.bench.crash_now(paths)
            return
        moment = ("before", "middle", "after")[step.c % 3]
        nth, second = 1 + step.b // 3, 1 + step.b % 8
        points = [Point(paths[0], nth, moment, 1 + step.c // 3)]
        if len(paths) > 1:
            points.append(Point(paths[1], second, moment, 1 + step.c // 3))
        self.crasher.arm(*points)

    async def amid(self, step: Step) -> None:
        """Crash an actor while several requests have just been asked, or at a message of theirs."""
        bench, path = self.bench, self.actor(step.b)
        bench.changes += 1
        nth = step.d // 16 * (1 + step.c % 7)
        if nth:
            moment = ("before", "middle", "after")[step.b % 3]
            self.crasher.arm(Point(path, nth, moment, 1 + step.a // 4))
        turn = self.turn_of(step.a)
        left = len(turn.tokens) - turn.lease.extent if turn is not None else 0
        requests = [await bench.ask(SPACES[0], self.prompt(step.a, step.b, step.c))]
        if turn is not None and left:
            count = min(left, 1 + step.b % (2 * self.unit))
            requests.append(bench.ask_room(turn, count, 2.0, False, False))
        other = self.turn_of(step.c) if step.c % 2 else None
        if other is not None:
            bench.leave(other)
            bench.nursery.start_soon(other.lease.release)
        for _ in range(step.d % 16):
            await trio.lowlevel.checkpoint()
        if not nth:
            self.crasher.now(bench.cache._assembled.system.find(path))
        if step.a % 2:
            for _ in range(step.a % 7):
                await trio.lowlevel.checkpoint()
            requests[0].scope.cancel()
        bench.pending += requests

    def actor(self, pick: int) -> str:
        """The path of some actor of the cache."""
        paths = [ref.path for ref in self.bench.actors]
        assert L3 in paths or self.history_store is None
        return paths[pick % len(paths)]

    # -- copies, the clock and the store ---------------------------------------------------------------

    async def stall(self, step: Step) -> None:
        self.bench.gate.stall()

    async def one(self, step: Step) -> None:
        """Let one of the copies that are held go, or fail."""
        if self.bench.gate.waiting:
            self.bench.gate.let_one_go(step.a, ok=step.b % 3 > 0)

    async def unstall(self, step: Step) -> None:
        if step.a % 4 == 0:
            self.bench.gate.failing = min(step.b % 3, self.bench.gate.waiting)
        self.bench.gate.let_go()

    async def jump(self, step: Step) -> None:
        """Let time pass: to the next deadline exactly, or some of it."""
        due = [request.deadline for request in self.bench.pending if request.deadline < 1e9]
        self.bench.refused.clear()
        ahead = max(0.0, min(due, default=0.0) - trio.current_time())
        self.clock.jump(ahead if step.a % 4 else (0.6, 6.0)[step.b % 2])
        if due:
            self.bench.changes += 1
        await trio.testing.wait_all_tasks_blocked()
        await self.bench.judge_refusals()

    async def harm(self, step: Step) -> None:
        assert self.history_store is not None
        self.history_store.harm(step.a, step.b, 1 + step.c % 4)

    async def heal(self, step: Step) -> None:
        assert self.history_store is not None
        self.history_store.heal()

    async def spoil(self, step: Step) -> None:
        assert self.history_store is not None
        self.history_store.spoil(step.a, step.b, step.c)

    async def hold(self, step: Step) -> None:
        assert self.history_store is not None
        self.history_store.hold(step.a)

    async def free(self, step: Step) -> None:
        assert self.history_store is not None
        self.history_store.let_go()
