"""Whole replays: hits as the independent script says, every byte right, wrong ones found."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
from banyankv.replay.presets import PRESETS, capacities, load_model
from banyankv.replay.run import CONCURRENCY, Replay
from banyankv.replay.toy_engine import ToyEngine
from banyankv.replay.workloads import BLOCK, Turn, Workload, expand, open_workload
from banyankv.runtime.cache import open_cache
from banyankv.runtime.config import CacheConfig, StoreConfig
from banyankv.spec import Namespace

_SPEC = importlib.util.spec_from_file_location(
    "infinite_hit_rate", Path(__file__).parents[1] / "infinite_hit_rate.py"
)
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)


def branching(seed, count):
    """Requests that extend and fork earlier ones anywhere, up to 8 blocks, as (length, block ids)."""
    random = np.random.default_rng(seed)
    fresh = itertools.count()
    requests = []
    for _ in range(count):
        ids = []
        if requests and random.random() < 0.8:
            length, ids = requests[random.integers(len(requests))]
            ids = ids[: min(random.integers(length // BLOCK + 1), 5)]
        ids = [*ids, *itertools.islice(fresh, int(random.integers(1, 4)))]
        requests.append(((len(ids) - 1) * BLOCK + int(random.integers(1, BLOCK + 1)), ids))
    return requests


def workload_of(requests):
    def build(i):
        length, ids = requests[i]
        return Turn(None, expand(np.array(ids, np.uint32), length))

    return Workload("branching", [length for length, _ in requests], build)


def config(model, l1, l2=None, **more):
    return CacheConfig(
        model=model,
        l1=capacities(model, l1),
        l2=capacities(model, l2) if l2 else None,
        **more,
    )


async def hits_with_room_for_everything(model, page_size, dispatch):
    requests = branching(seed=page_size, count=40)
    spec = load_model(model, page_size)
    run = Replay(config(spec, 200_000, dispatch=dispatch), workload_of(requests), concurrency=1)
    result = await run.run()
    assert result.sound, result.problem
    assert result.requests == len(requests)
    assert result.fingerprints.checked > 0
    on_grid = sum(script.hit_tokens(requests, page_size, states=True))
    return result.hit_tokens.total, sum(script.hit_tokens(requests, page_size)), on_grid


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("model", ["full", "full+mamba", "full+swa+mamba"])
async def test_with_room_for_everything_hits_are_those_of_the_independent_script(
    model, page_size, dispatch
):
    hits, every_page, on_grid = await hits_with_room_for_everything(model, page_size, dispatch)
    assert hits == (every_page if model == "full" else on_grid)


@pytest.mark.parametrize("page_size", [1, 16, 64])
async def test_windows_hit_no_less_than_states_would_and_no_more_than_full(page_size, dispatch):
    """The script knows no windows: they stand where states would, and at the end of every prompt."""
    hits, every_page, on_grid = await hits_with_room_for_everything("full+swa", page_size, dispatch)
    assert on_grid <= hits <= every_page


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("model", PRESETS)
async def test_lower_tiers_add_hits_and_no_wrong_byte(model, concurrency, dispatch, tmp_path):
    requests = branching(seed=5, count=100)
    spec = load_model(model)
    everything = sum(length for length, _ in requests)
    small = {"model": spec, "l1": everything // 12, "dispatch": dispatch}
    runs = [
        config(**small),
        config(**small, l2=everything // 8),
        config(
            **small,
            l2=everything // 8,
            store=StoreConfig(path=str(tmp_path), max_bytes=64 << 20),
        ),
    ]
    hits = []
    for run in runs:
        result = await Replay(run, workload_of(requests), concurrency=concurrency).run()
        assert result.sound, result.problem
        assert result.refused == 0
        hits.append(result.hit_tokens)
    infinite = sum(script.hit_tokens(requests, 16, states="mamba" in model))
    assert hits[0].total == hits[0].l1
    assert hits[1].l3 == 0 < hits[1].l2
    assert hits[2].l3 > 0
    if concurrency == 1:
        assert hits[0].total < hits[1].total < hits[2].total <= infinite


@pytest.mark.parametrize("part", ["full", "swa", "mamba"])
async def test_a_wrong_byte_is_found_and_named(part):
    model = load_model("full+swa+mamba")
    tokens = next(iter(open_workload("generated:scattered:length=600"))).tokens
    async with open_cache(config(model, 4096)) as cache:
        engine = ToyEngine(cache, model, Namespace(), 4096)
        await engine.turn(Turn(None, tokens))
        await engine.turn(Turn(None, tokens))
        assert engine.tally.failed == 0
        # 512 tokens are reused: their pages, the window's pages, one state. Then come the pages of
        # [512, 592), computed again and replaced by those of the first time.
        assert engine.tally.checked == (32 + 5) + (8 + 5) + 1
        for raw in cache.pools.raw(part):
            raw[:, -1] ^= 1
        await engine.turn(Turn(None, tokens))
        assert engine.tally.failed == {"full": 32 + 5, "swa": 8 + 5, "mamba": 1}[part]
        assert engine.tally.first_failure.startswith(f"component {part!r}: the bytes of page ")
        assert "of request 3" in engine.tally.first_failure


async def test_namespaces_never_meet():
    model = load_model("full")
    tokens = next(iter(open_workload("generated:scattered:length=600"))).tokens
    async with open_cache(config(model, 4096)) as cache:
        for salt in (None, "", "a"):
            engine = ToyEngine(cache, model, Namespace(salt=salt), 4096)
            await engine.turn(Turn(None, tokens))
            assert engine.tally.hit_tokens.total == 0
            await engine.turn(Turn(None, tokens))
            assert engine.tally.hit_tokens.total == 592
            assert engine.tally.failed == 0


async def test_requests_without_room_are_refused_and_counted():
    model = load_model("full")
    workload = open_workload("generated:scattered:requests=3,length=600")
    result = await Replay(config(model, 320, room_timeout=0.0), workload).run()
    assert (result.requests, result.refused, result.hit_rate) == (3, 3, 0.0)
    assert result.sound


async def test_stop_ends_a_run_between_requests():
    workload = open_workload("generated:scattered:requests=9,length=64")
    replay = Replay(
        config(load_model("full"), 4096),
        workload,
        on_turn=lambda tally: replay.stop() if tally.requests == 4 else None,
    )
    result = await replay.run()
    assert result.interrupted
    assert result.requests == 4
    assert result.sound


async def test_requests_overlap_but_never_those_of_one_session_nor_more_than_fit(monkeypatch):
    workload = open_workload("generated:multi-turn:sessions=5,turns=6,new=300")
    under_way, most = [], 0
    serve = ToyEngine.turn

    async def watched(self, turn):
        nonlocal most
        assert turn.session not in [other.session for other in under_way]
        under_way.append(turn)
        most = max(most, len(under_way))
        assert sum(len(turn.tokens) for turn in under_way) <= 4096
        await serve(self, turn)
        under_way.remove(turn)

    monkeypatch.setattr(ToyEngine, "turn", watched)
    result = await Replay(config(load_model("full+swa"), 4096, 8192), workload).run()
    assert result.sound, result.problem
    assert (result.concurrency, result.refused) == (CONCURRENCY, 0)
    assert 1 < most <= CONCURRENCY
    assert result.hit_tokens.total > 0


async def test_a_prompt_that_never_fits_is_refused_and_the_others_go_on():
    sizes = (600, 64, 600, 64)
    prompts = [np.full(size, i, np.uint32) for i, size in enumerate(sizes)]
    workload = Workload("mixed", sizes, lambda i: Turn(None, prompts[i]))
    result = await Replay(config(load_model("full"), 320, room_timeout=0.0), workload).run()
    assert (result.requests, result.refused) == (4, 2)
    assert result.sound, result.problem


async def test_samples_follow_the_run():
    workload = open_workload("generated:multi-turn:sessions=3,turns=4,new=64")
    replay = Replay(config(load_model("full"), 4096, 8192), workload, concurrency=1)
    result = await replay.run()
    assert [sample.requests for sample in replay.samples] == list(range(1, 13))
    last = replay.samples[-1]
    assert (last.tokens, last.hit_tokens) == (result.tokens, result.hit_tokens)
    assert set(last.occupancy) == {"l1 full", "l2 full"}
    assert 0 < last.occupancy["l2 full"] < last.occupancy["l1 full"] <= 1


@pytest.mark.parametrize("model", ["full", "full+swa+mamba"])
async def test_the_conversation_trace_begins_as_the_script_says(traces, model):
    path = traces / "mooncake_conversation_trace.jsonl"
    workload = open_workload(str(path), 300)
    result = await Replay(config(load_model(model), 5_000_000), workload, concurrency=1).run()
    assert result.sound, result.problem
    requests = script.read(path, 300)
    assert result.tokens == sum(length for length, _ in requests)
    assert result.hit_tokens.total == sum(script.hit_tokens(requests, states="mamba" in model)) > 0


@pytest.mark.parametrize("model", ["full", "full+swa+mamba"])
async def test_on_the_conversation_trace_each_tier_adds_hits(traces, model, tmp_path):
    path = traces / "mooncake_conversation_trace.jsonl"
    workload = open_workload(str(path), 600)
    spec = load_model(model)
    tenth = 700_000  # of the working set of these requests, about 7 million tokens
    store = StoreConfig(path=str(tmp_path), max_bytes=1 << 30)
    runs = [
        config(spec, tenth),
        config(spec, tenth, 2 * tenth),
        config(spec, tenth, 2 * tenth, store=store),
    ]
    rates = []
    for run in runs:
        result = await Replay(run, workload, concurrency=1).run()
        assert result.sound, result.problem
        rates.append(result.hit_rate)
    requests = script.read(path, 600)
    infinite = sum(script.hit_tokens(requests, states="mamba" in model)) / result.tokens
    assert rates[0] < rates[1] < rates[2] <= infinite
    assert rates[2] > infinite - 0.005
