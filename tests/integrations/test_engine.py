"""Marks, room, cancellation, and what does not belong together."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import threading

import torch
import trio
import trio.testing
from banyankv import CacheConfig, ConfigError, NoCapacity, StaleLease, open_cache
from banyankv.integrations.marks import marks
from banyankv.integrations.tiny import tiny_model
from banyankv.integrations.transformers import TransformersEngine

from .world import cold, cold_generation, engine_of, layout_of, model_of, same, through, tokens


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"length": 21}, [16]),
        ({"length": 24}, [16, 24]),  # the same prompt again, and its continuation
        ({"length": 7}, []),
        ({"length": 8}, [8]),
        ({"length": 29, "fork": 16}, [16, 24]),
        ({"length": 29, "fork": 16, "reused": 16}, [24]),
        ({"length": 100, "spacing": 32}, [32, 64, 96]),
        ({"length": 100, "spacing": 32, "reused": 64}, [96]),
        ({"length": 50, "keep": [9, 17, 50, 51, 999]}, [8, 16, 48]),
    ],
)
def test_marks(given, expected):
    assert marks(**({"page": 8, "reused": 0, "fork": 0} | given)) == expected


async def test_forwards_end_where_states_are_kept():
    async with engine_of("lara-mini", chunk=20, spacing=32) as engine:
        async with await engine.start(tokens(1, 70), keep=[43]) as sequence:
            await through(sequence)
        ends = [end for _, end in engine.spans]
        assert ends == [20, 32, 40, 60, 64, 70]
        assert engine.spans[0] == (0, 20)


@pytest.mark.parametrize("family", ["gemma3", "llama4"])
async def test_without_states_nothing_is_cut(family):
    """A window needs no cut: the forward that passes a mark has written all that stands there."""
    prompt = tokens(1, 61)
    async with engine_of(family, chunk=64, spacing=16) as engine:
        async with await engine.start(prompt, keep=[27]) as sequence:
            await through(sequence)
        assert engine.spans == [(0, 61)]
        for shared in (61, 60, 48, 33, 27, 16):
            async with await engine.start([*prompt[:shared], 7]) as sequence:
                assert sequence.lease.length == shared // 8 * 8
                assert same(await through(sequence), cold(family, [*prompt[:shared], 7]))


async def test_answers_keep_states_at_the_spacing_too():
    """What the store keeps stands at its chunks' ends, also where an answer passes one."""
    async with engine_of("lara-mini", spacing=15) as engine:
        assert engine.spacing == 16
        prompt = tokens(1, 42)
        async with await engine.start(prompt) as sequence:
            history = prompt + await engine.generate(sequence, 40)
        reached = [(await engine.cache.peek(history[:n])).length for n in (42, 49, 65, 79, 81)]
        assert reached == [40, 48, 64, 64, 80]


@pytest.mark.parametrize(("store", "spacing"), [(False, 0), (True, 256)])
async def test_a_store_wants_states_at_its_chunks_ends(tmp_path, store, spacing):
    async with engine_of("lara-mini", store=tmp_path if store else None) as engine:
        assert engine.spacing == spacing


async def test_a_conversation_that_comes_back_from_the_store(tmp_path):
    prompt = tokens(1, 250)
    async with engine_of("lara-mini", store=tmp_path, chunk=128) as engine:
        async with await engine.start(prompt) as sequence:
            history = prompt + await engine.generate(sequence, 15)
        await engine.cache.settle()
        await engine.cache.flush()
        async with await engine.start(history) as sequence:
            assert sequence.lease.hit.l3 == 256
            answer = await engine.generate(sequence, 4)
        assert answer == cold_generation("lara-mini", history, 4)


async def test_a_chunk_can_be_chosen_each_time():
    async with engine_of("lara-mini") as engine, await engine.start(tokens(1, 30)) as sequence:
        assert not await sequence.prefill(5)
        assert not await sequence.prefill(6)
        assert [*engine.spans] == [(0, 5), (5, 11)]
        with pytest.raises(ConfigError, match="at least 1 token"):
            await sequence.prefill(0)
        assert same(await through(sequence), cold("lara-mini", tokens(1, 30)))
        assert await sequence.prefill()


@pytest.mark.parametrize("family", ["lara-mini", "gemma3"])
async def test_cancelled_with_room_for_a_chunk_that_was_not_computed(family, monkeypatch):
    """To extend says that all before is computed: it must not be said of that chunk."""
    prompt = tokens(1, 90)

    scope = trio.CancelScope()

    async def cancelled(*_):
        scope.cancel()
        await trio.lowlevel.checkpoint()

    async with engine_of(family, chunk=40) as engine:
        async with await engine.start(prompt) as sequence:
            with monkeypatch.context() as patched, scope:
                patched.setattr(engine, "compute", cancelled)
                await sequence.prefill()
            assert scope.cancelled_caught
            assert (sequence.position, sequence.lease.extent) == (0, 40)
            assert not await sequence.prefill(5)
            assert not await sequence.prefill(60)
            assert (sequence.position, sequence.lease.extent) == (40, 40)
            assert same(await through(sequence), cold(family, prompt))
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 88
            assert same(await through(sequence), cold(family, prompt))


async def test_no_room_to_prefill_and_then_there_is():
    prompt, other = tokens(1, 60), tokens(2, 40)
    async with (
        engine_of("lara-mini", pages=10, states=6) as engine,
        await engine.start(other) as blocker,
        await engine.start(prompt) as sequence,
    ):
        await through(blocker)
        with pytest.raises(NoCapacity):
            while not await sequence.prefill(deadline=0):
                pass
        await blocker.release()
        assert same(await through(sequence), cold("lara-mini", prompt))


async def test_no_room_for_a_token_changes_nothing():
    prompt = tokens(1, 16)
    async with engine_of("lara-mini", pages=3, states=6) as engine:
        async with await engine.start(prompt) as sequence, await engine.start([1, 2]) as blocker:
            await through(sequence)
            await blocker.prefill()
            token = sequence.argmax()
            for _ in range(2):
                with pytest.raises(NoCapacity):
                    await sequence.push(token, deadline=0)
            assert sequence.tokens == prompt
            await blocker.release()
            await sequence.push(token, deadline=0)
            await engine.step([sequence])
            answer = [token, sequence.argmax()]
        assert answer == cold_generation("lara-mini", prompt, 2)


async def test_preempted_and_resumed():
    """Finish and release gives the room away; starting again with all tokens takes the turn up."""
    prompt = tokens(1, 30)
    async with engine_of("lara-mini") as engine:
        async with await engine.start(prompt) as sequence:
            answer = await engine.generate(sequence, 12)
        async with await engine.start(prompt + answer) as sequence:
            assert sequence.lease.length == 40
            answer += await engine.generate(sequence, 5)
        assert answer == cold_generation("lara-mini", prompt, 17)


async def test_a_turn_that_ends_while_its_beginning_comes_up_from_l2():
    """What is published stops there; the state that was kept for it is kept again, and nobody fails."""
    prompt, gate = tokens(1, 17), trio.Event()
    layout = layout_of("lara-mini")
    room = {component.name: 32 for component in layout.spec.components}
    gate.set()

    async def hold(*_):
        await gate.wait()

    config = CacheConfig(model=layout.spec, l1=room, l2=room)
    async with open_cache(config, before_copy=hold) as cache, trio.open_nursery() as nursery:
        engine = TransformersEngine(model_of("lara-mini"), cache, layout, spacing=8)

        async def arriving():
            async with await engine.start(prompt):
                pass

        async with await engine.start(prompt) as late:
            async with await engine.start(prompt) as first:
                await through(first)
            await cache.settle()
            for component, count in room.items():
                await cache.evict(component, count)
            gate = trio.Event()
            nursery.start_soon(arriving)
            await trio.testing.wait_all_tasks_blocked()
            await through(late)
            for _ in range(7):
                await late.push(late.argmax())
                await engine.step([late])
            assert (late.position, late.lease.published) == (24, 0)
            await late.finish()
            assert same(late.logits, cold("lara-mini", late.tokens))
        gate.set()


async def test_a_step_at_a_time():
    async with engine_of("lara-mini") as engine:
        async with await engine.start(tokens(1, 12)) as sequence:
            with pytest.raises(ConfigError, match="no logits yet"):
                sequence.argmax()
            with pytest.raises(ConfigError, match="prompt first"):
                await sequence.push(7)
            await through(sequence)
            await sequence.push(7)
            with pytest.raises(ConfigError, match="compute what was pushed"):
                await sequence.push(8)
            await engine.step([sequence])
        with pytest.raises(StaleLease):
            await sequence.push(9)


async def test_cancelled_while_a_forward_runs_on_a_thread(monkeypatch):
    """The forward ends first: nobody else gets its pages while it still writes them."""
    entered, go_on = threading.Event(), threading.Event()
    forward = TransformersEngine.forward

    def slow(self, *args):
        entered.set()
        assert go_on.wait(10)
        return forward(self, *args)

    monkeypatch.setattr(TransformersEngine, "forward", slow)
    async with engine_of("lara-mini", threaded=True) as engine:
        released = trio.Event()

        async def request():
            try:
                async with await engine.start(tokens(1, 30)) as sequence:
                    await through(sequence)
            finally:
                released.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
            assert not released.is_set()
            go_on.set()
        assert released.is_set()
        assert (await engine.cache.stats()).leases == 0


async def test_a_forward_that_fails_half_way():
    """Layers have updated some states in place: the sequence is refused, what it published stays."""
    prompt = tokens(1, 60)

    def fail(*_):
        raise ArithmeticError("half-way")

    async with engine_of("lara-mini") as engine:
        async with await engine.start(prompt, keep=[32]) as sequence:
            await sequence.prefill(32)
            hook = engine.model.model.layers[3].register_forward_hook(fail)
            with pytest.raises(ArithmeticError):
                await sequence.prefill()
            hook.remove()
            with pytest.raises(ConfigError, match="failed half-way"):
                await sequence.prefill()
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 32
            assert same(await through(sequence), cold("lara-mini", prompt))


async def test_a_failed_restore_gives_the_lease_back(monkeypatch):
    async with engine_of("lara-mini") as engine:
        monkeypatch.setattr(engine, "restore", lambda lease: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await engine.start(tokens(1, 30))
        assert (await engine.cache.stats()).leases == 0


async def test_restoring_copies_no_state():
    """The cache object's states are the lease's slot: what the model updates is what is snapshot."""
    async with engine_of("lara-mini") as engine, await engine.start(tokens(1, 30)) as sequence:
        await through(sequence)
        slot = sequence.lease.state()
        states = [engine.cache.pools.layer("mamba", part)[slot] for part in range(4)]
        layers = [sequence.kv.layers[index] for index in (0, 2)]
        held = [t for layer in layers for t in (layer.conv_states[0], layer.recurrent_states[0])]
        assert [t.data_ptr() for t in held] == [t.data_ptr() for t in states]


async def test_what_does_not_belong_together():
    async with engine_of("lara-mini") as engine:
        with pytest.raises(ConfigError, match="the cache is one of 'lara_mini-"):
            TransformersEngine(model_of("gemma3"), engine.cache, layout_of("gemma3"))
        for options in ({"chunk": 0}, {"spacing": -1}):
            with pytest.raises(ConfigError, match="chunk must be at least 1"):
                TransformersEngine(model_of("lara-mini"), engine.cache, engine.layout, **options)
        with pytest.raises(ConfigError, match="empty prompt"):
            await engine.start([])
        training = tiny_model("lara-mini").train()
        with pytest.raises(ConfigError, match="call its eval"):
            TransformersEngine(training, engine.cache, engine.layout)
        with pytest.raises(ConfigError, match="L1 is on cpu, the model on meta"):
            TransformersEngine(training.to("meta"), engine.cache, engine.layout)


async def test_the_caller_s_autograd_mode_is_left_alone():
    async with engine_of("gemma3") as engine:
        async with await engine.start(tokens(1, 20)) as sequence:
            await through(sequence)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
