"""The server under load: clients that vanish, too many of them, too little room, and its own end."""

import random
import re

import openai
import pytest
import trio
from banyankv.errors import ConfigError
from banyankv.integrations.serving import server as server_module
from banyankv.integrations.serving.generation import Generation
from banyankv.integrations.serving.scheduler import ShuttingDown
from banyankv.integrations.serving.text import encode
from opentelemetry.sdk.metrics import MeterProvider

from .serving import NAME, PATIENT, clean, serving, text, uncached, until


async def vanish(server, true, **said):
    """Send a request and hang up when something is true."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.post(**said))
        await until(true)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_in_the_queue_is_never_computed(stream):
    async with serving(running=1) as server, trio.open_nursery() as nursery:
        gate = server.hold()
        nursery.start_soon(server.complete, text(1, 20), 1)
        await gate.reached()
        waiting = server.scheduler.waiting
        said = {"prompt": text(2, 20), "stream": stream}
        await vanish(server, lambda: waiting, **said)
        await until(lambda: waiting[0].gone)
        gate.open()
        await server.scheduler.drained()
        assert gate.forwards == 2  # 20 tokens of one prompt: up to its last page, and the rest
        assert (await server.cache.stats()).requests == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_in_prefill_is_not_computed_to_its_end(stream):
    async with serving() as server:
        gate = server.hold()
        running = server.scheduler.running
        said = {"prompt": text(1, 200), "stream": stream}
        await vanish(server, lambda: running, **said)
        await until(lambda: running[0].gone)
        gate.open()
        await server.scheduler.drained()
        assert gate.forwards == 1


async def test_a_client_that_vanishes_from_a_stream_is_not_answered_to_its_end():
    prompt = text(1, 40)
    async with serving() as server:
        gate = server.hold()
        gate.open()
        async with server.hang_up(prompt=prompt, max_tokens=400) as stream:
            await stream.events(3)
        await server.scheduler.drained()
        assert gate.forwards < 200
        # What was computed for it is there for others.
        assert (await server.complete(prompt, 4)) == (uncached(prompt, 4), 32)


async def test_a_client_that_vanishes_while_it_asks(capfd):
    async with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        for sent in (b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"):
            for rest in (b"", b"Content-Length: 99\r\n\r\n{"):
                async with await trio.open_tcp_stream(host, int(port)) as socket:
                    await socket.send_all(sent + rest)
        assert (await server.complete(text(1, 20), 4))[0] == uncached(text(1, 20), 4)
        assert (await server.cache.stats()).requests == 1
    assert capfd.readouterr().err == ""


async def test_a_client_that_vanishes_while_it_waits_for_room():
    """It is alone, and nobody else of the server's can give it any."""
    async with (
        serving(pages=24, room_timeout=PATIENT) as server,
        await server.cache.acquire([1, 2, 3]) as lease,
    ):
        await lease.extend(23 * 8)

        async def somebody_waits():
            return (await server.cache.stats()).waiting

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.complete, text(1, 100))
            while not await somebody_waits():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await server.scheduler.drained()
        assert (await server.cache.stats()).leases == 1
        await lease.release()


async def test_a_client_that_vanishes_while_its_prefix_comes_from_below(tmp_path):
    prompt = text(1, 300)
    async with serving(store=tmp_path) as server:
        await server.complete(prompt, 4)
        await server.cache.settle()
        await server.cache.flush()
        starting = server.scheduler.starting
        await vanish(server, lambda: starting, prompt=prompt)
        await server.scheduler.drained()
        assert (await server.complete(prompt, 4))[0] == uncached(prompt, 4)


async def test_load_with_clients_of_which_many_vanish():
    """Conversations with a common beginning, in too little room, every third client impatient."""
    dice = random.Random(0)
    common = text(0, 48)
    jobs = [(common + text(n, dice.randrange(8, 120)), dice.randrange(1, 16)) for n in range(36)]
    async with serving(pages=48, states=24, running=4, waiting=99) as server:
        texts = {}

        async def patient(job):
            texts[job] = (await server.complete(*job))[0]

        async def impatient(job, tokens):
            async with server.hang_up(prompt=job[0], max_tokens=60) as stream:
                await stream.events(tokens)

        async def hasty(job, steps):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.complete, *job)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

        async with trio.open_nursery() as nursery:
            for number, job in enumerate(jobs):
                if number % 3 == 0:
                    nursery.start_soon(impatient, job, dice.randrange(1, 8))
                elif number % 3 == 1:
                    nursery.start_soon(hasty, job, dice.randrange(400))
                else:
                    nursery.start_soon(patient, job)
        await server.scheduler.drained()
        await clean(server.cache)
        assert texts == {job: uncached(*job) for job in jobs[2::3]}
        stats = await server.cache.stats()
        assert stats.hit_tokens.total > 0
        assert sum(component.evicted_l1 + component.demoted for component in stats.components) > 0


async def test_preempted_requests_say_the_same():
    """Four answers that do not fit into L1 at once: the youngest give way and come back."""
    prompts = [text(n, 60 + 9 * n) for n in range(4)]
    async with serving(pages=40, running=4) as server:
        texts = {}

        async def ask(prompt):
            texts[prompt] = (await server.complete(prompt, 40))[0]

        async with trio.open_nursery() as nursery:
            for prompt in prompts:
                nursery.start_soon(ask, prompt)
        assert server.scheduler.preempted > 0
        told = (await server.client.get("/metrics")).text
        assert re.search(r"time_to_first_token_seconds_count{.*} 4.0\n", told)
        assert re.search(rf"preempted_total{{.*}} {server.scheduler.preempted}.0\n", told)
    assert texts == {prompt: uncached(prompt, 40) for prompt in prompts}


async def test_a_preempted_request_is_told_what_its_first_lease_reused():
    prompt, other = text(1, 100), text(2, 130)
    async with serving(pages=32, running=2) as server:
        await server.complete(other, 1)
        usages = []

        async def ask(prompt):
            response = await server.post(prompt=prompt, max_tokens=100)
            usages.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, prompt)
            await until(lambda: server.scheduler.running)
            nursery.start_soon(ask, other)
        assert server.scheduler.preempted > 0
    assert sorted(usages) == [0, 128]


async def test_a_request_preempted_in_its_prompt_is_told_no_more_than_it_reused():
    first, second = text(1, 100), text(2, 200)
    async with serving(pages=32, running=2) as server:
        cached = {}

        async def ask(prompt, count):
            response = await server.post(prompt=prompt, max_tokens=count)
            usage = response.json()["usage"]
            cached[prompt] = usage["prompt_tokens_details"]["cached_tokens"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, first, 30)
            await until(lambda: server.scheduler.running)
            nursery.start_soon(ask, second, 1)
            await until(lambda: server.scheduler.preempted)
            assert not server.scheduler.waiting[0].answered
        assert (await server.cache.stats()).hit_tokens.total > 0  # it found its own pages again
    assert cached == {first: 0, second: 0}


async def test_who_is_cheap_goes_first_but_nobody_waits_for_ever():
    cached, long = text(1, 100), text(2, 400)
    async with serving(running=1, waiting=99) as server:
        await server.complete(cached, 1)
        gate = server.hold()
        order = []

        async def ask(name, prompt):
            await server.post(prompt=prompt, max_tokens=1)
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "first", text(3, 20))
            await gate.reached()
            nursery.start_soon(ask, "long", long)
            await until(lambda: len(server.scheduler.waiting) == 1)
            for number in range(12):
                nursery.start_soon(ask, "cached", cached + text(9 + number, 4))
            await until(lambda: len(server.scheduler.waiting) == 13)
            gate.open()
        assert order[:2] == ["first", "cached"]
        assert order.index("long") == 9


async def test_too_many_clients_are_told_when_to_come_back():
    async with serving(running=1, waiting=2) as server, trio.open_nursery() as nursery:
        gate = server.hold()
        nursery.start_soon(server.complete, text(0, 20))
        await gate.reached()
        for number in (1, 2):
            nursery.start_soon(server.complete, text(number, 20))
        await until(lambda: len(server.scheduler.waiting) == 2)
        for stream in (False, True):
            refused = await server.post(prompt="one too many", stream=stream)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            with pytest.raises(openai.RateLimitError):
                await client.completions.create(model=NAME, prompt="a")
        assert (await server.client.get("/health")).json()["waiting"] == 2
        gate.open()
        await server.scheduler.drained()
        assert (await server.post(prompt="now there is room")).status_code == 200


async def test_a_request_without_any_room_is_refused_and_the_server_goes_on():
    """Somebody else in the same cache holds all of it."""
    async with serving(pages=24, room_timeout=0.1) as server:
        async with await server.cache.acquire([1, 2, 3]) as lease:
            await lease.extend(23 * 8)
            response = await server.post(prompt=text(1, 100))
            assert response.status_code == 503
            assert "held by live leases" in response.json()["error"]["message"]
            assert response.headers["retry-after"] == "1"
        assert (await server.complete(text(1, 100), 4))[0] == uncached(text(1, 100), 4)


async def test_shutting_down_lets_who_runs_finish_and_refuses_who_waits():
    ended = trio.Event()
    async with serving(running=1, stop=ended.wait) as server:
        gate = server.hold()
        texts, refused = [], []

        async def run():
            texts.append((await server.complete(text(1, 20), 8))[0])

        async def wait():
            refused.append(await server.post(prompt=text(2, 20)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await gate.reached()
            nursery.start_soon(wait)
            await until(lambda: server.scheduler.waiting)
            ended.set()
            await until(lambda: refused)
            assert (await server.client.get("/health")).status_code == 503
            assert (await server.post(prompt="too late")).status_code == 503
            gate.open()
        assert refused[0].status_code == 503
        assert texts == [uncached(text(1, 20), 8)]


async def test_shutting_down_ends_a_stream_that_takes_too_long_with_an_error():
    ended = trio.Event()
    async with serving(stop=ended.wait, grace=0.0) as server:
        async with server.stream(prompt=text(1, 20), max_tokens=700) as stream:
            await anext(stream)
            ended.set()
            rest = [event async for event in stream]
        assert rest[-1]["error"]["type"] == "server_error"
        assert len(rest) < 600


@pytest.mark.parametrize("stream", [False, True])
async def test_shutting_down_tells_a_request_that_still_starts(stream, monkeypatch):
    """It has no sequence yet, but its client must not take an empty answer for a complete one."""
    ended = trio.Event()
    async with serving(stop=ended.wait, grace=0.0) as server:

        async def never(*_, **__):
            await trio.sleep_forever()

        monkeypatch.setattr(server.engine, "start", never)
        answers = []

        async def ask():
            answers.append(await server.post(prompt=text(1, 20), stream=stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: server.scheduler.starting)
            ended.set()
        [answer] = answers
        assert answer.status_code == (200 if stream else 503)
        assert "the server is shutting down" in answer.text


async def test_a_server_whose_engine_fails_tells_who_waits_for_a_start():
    """A crash of the engine ends the server; no client takes what it has for the whole answer."""
    told = None

    async def fail(*_, **__):
        raise ValueError("no such kernel")

    with pytest.RaisesGroup(ValueError, flatten_subgroups=True, allow_unwrapped=True):
        async with serving() as server:
            server.engine.start = fail
            generation = Generation(encode(text(1, 20)), 4)
            async with server.scheduler.submit(generation):
                try:
                    told = [token async for token in generation]
                except ShuttingDown as error:
                    told = error
    assert isinstance(told, ShuttingDown)


async def test_a_server_that_is_cancelled_gives_everything_back():
    async with serving(running=3) as server, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(server.complete, text(number, 90), 300)
        await until(lambda: len(server.scheduler.running) == 3 and server.scheduler.waiting)
        server.nursery.cancel_scope.cancel()
        await trio.sleep_forever()


async def test_a_server_that_cannot_listen_leaves_no_meters(monkeypatch):
    shut = []
    shutdown = MeterProvider.shutdown

    def counted(self):
        shut.append(self)
        shutdown(self)

    async def taken(*_, **__):
        raise OSError("address in use")

    monkeypatch.setattr(MeterProvider, "shutdown", counted)
    monkeypatch.setattr(server_module, "_serve_http", taken)
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="in use"), flatten_subgroups=True):
        async with serving():
            raise AssertionError("it listens")
    assert len(shut) == 1
