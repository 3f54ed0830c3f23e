"""Guest mode: callbacks of an asyncio host call and tell actors, with no trio task running."""

from __future__ import annotations

import asyncio
from typing import Any

import outcome
import trio
from banyankv.actors import Ref, open_system

from .cast import Add, Boss, Counter, Twice


def test_asyncio_callbacks_call_and_tell() -> None:
    async def host() -> tuple[list[Any], Any]:
        loop = asyncio.get_running_loop()
        answers: list[Any] = []
        over: asyncio.Future[outcome.Outcome[Any]] = loop.create_future()

        async def guest() -> int:
            async with open_system("t") as system:
                counter: Ref[Counter] = await system.spawn(Counter, name="counter")
                boss = await system.spawn(lambda: Boss(counter), name="boss")
                told = trio.Event()

                def callback() -> None:
                    answers.append(counter.call(Add(1)))
                    answers.append(boss.call(Twice(1)))
                    counter.tell(Add(10))
                    told.set()

                loop.call_soon(callback)
                await told.wait()
                while counter.mailbox:
                    await trio.lowlevel.checkpoint()
                answer: int = await counter.ask(Add(0))
                return answer

        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=over.set_result,
        )
        return answers, (await over).unwrap()

    assert asyncio.run(host()) == ([1, (2, 3)], 13)
