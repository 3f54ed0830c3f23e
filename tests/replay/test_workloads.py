"""Workload files and generated workloads: what they hold, and what is said of broken ones."""

import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from banyankv.errors import ConfigError
from banyankv.replay import workloads
from banyankv.replay.workloads import BLOCK, MAX_BLOCKS, expand, open_workload
from hypothesis import given
from hypothesis import strategies as st


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def common_prefix(a, b):
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def mooncake(length, *ids):
    return {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": list(ids)}


# -- Mooncake --------------------------------------------------------------------------------------


def test_mooncake_requests_share_tokens_exactly_where_they_share_blocks(tmp_path):
    path = write_lines(
        tmp_path / "t.jsonl",
        mooncake(1300, 0, 1, 2),
        mooncake(1500, 0, 1, 2),
        mooncake(1024, 0, 3),
        mooncake(10, 4),
    )
    tokens = [turn.tokens for turn in open_workload(path)]
    assert [len(t) for t in tokens] == [1300, 1500, 1024, 10]
    assert all(t.dtype == np.uint32 for t in tokens)
    assert common_prefix(tokens[0], tokens[1]) == 1300
    assert common_prefix(tokens[0], tokens[2]) == BLOCK
    assert common_prefix(tokens[0], tokens[3]) == 0


@given(
    st.lists(st.integers(0, MAX_BLOCKS - 1), min_size=1, max_size=4),
    st.lists(st.integers(0, MAX_BLOCKS - 1), min_size=1, max_size=4),
)
def test_tokens_of_different_blocks_never_meet(left, right):
    a = expand(np.array(left, np.uint32), len(left) * BLOCK)
    b = expand(np.array(right, np.uint32), len(right) * BLOCK)
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            equal = a[i * BLOCK : (i + 1) * BLOCK] == b[j * BLOCK : (j + 1) * BLOCK]
            assert equal.all() if one == other else not equal.any()


def test_expanded_tokens_are_pinned():
    # Stores outlive a version: the tokens of a trace must stay what they are.
    tokens = expand(np.array([0, 182789], np.uint32), 514)
    assert tokens[[0, 1, 511, 512, 513]].tolist() == [
        0,
        1753845952,
        1351110375,
        3918081053,
        2003026633,
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (mooncake(0), "input_length must be at least 1, not 0"),
        (mooncake(513, 1), "513 tokens are 2 blocks of 512, but hash_ids has 1"),
        (mooncake(5, -1), "hash id -1 is not within"),
        (mooncake(5, MAX_BLOCKS), f"hash id {MAX_BLOCKS} is not within"),
        ({"hash_ids": [1]}, "missing required field `input_length`"),
        ({"input_length": 5, "hash_ids": ["x"]}, "Expected `int`, got `str`"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, message):
    path = write_lines(tmp_path / "t.jsonl", mooncake(5, 0), row)
    with pytest.raises(ConfigError) as caught:
        open_workload(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_torn_line_is_named_and_lines_behind_the_limit_are_not_read(tmp_path):
    path = tmp_path / "t.jsonl"
    write_lines(path, mooncake(5, 0), mooncake(6, 1))
    path.write_bytes(path.read_bytes() + b'\n{"input_length": 7, "hash')
    with pytest.raises(ConfigError, match=r"t\.jsonl:4: Input data was truncated"):
        open_workload(str(path))
    assert len(open_workload(str(path), 2)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither a JSON object a line nor a JSON array"),
        (b"timestamp,input\n", "neither a JSON object a line nor a JSON array"),
        (b'{"a": 1}\n', "no known trace format"),
        (b'{"turns": \xff}\n', ":1: "),
        (b"[]", "no requests in it"),
        (b'[\n{"task_id": 1,\n]', ":3: "),
        (b'[\n{"task_id": 1, "trial": 0}]', ":2: Object missing required field `traj`"),
        (b"\x1f\x8b\x08\x00broken", "not a whole gzip file"),
        (gzip.compress(b'{"hash_ids": []}' * 99, mtime=0)[:40], "not a whole gzip file"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, "not a whole gzip file"),
        (b'{"hash_ids": ' + b"[" * 99_999, ":1: nested too deeply"),
        (b'{"hash_ids": [0], "input_length": 5}\n{"x": ' + b"[" * 99_999, ":2: nested too deeply"),
        (b"[" * 99_999, ": nested too deeply"),
        (b'[{"task_id": 1, "traj": ' + b"[" * 99_999, ": nested too deeply"),
        (b'[\n{"task_id": 1, "trial": 0, "traj": []},\n{"task_id": 1}]', ":3: Object missing"),
        (b'[1, \n"\xff"]', ":1: Expected `object`"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, content, message):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        open_workload(str(path))
    assert message in str(caught.value)


LIMITED = """
import gzip, resource, sys, tracemalloc
from banyankv.errors import ConfigError
from banyankv.replay import workloads
from banyankv.replay.workloads import open_workload

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
tracemalloc.start()
try:
    print(len(open_workload(sys.argv[1])))
except ConfigError as error:
    print(error)
print(tracemalloc.get_traced_memory()[1])
"""


def opened_within_limits(path):
    """Open a trace in a process of its own: what it said, and its peak of memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said, peak = done.stdout.splitlines()
    return said, int(peak)


def test_a_question_of_many_turns_takes_memory_in_proportion(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", {"question_id": 7, "turns": ["a"] * 40_000})
    assert path
    assert tmp_path.joinpath("t.jsonl").stat().st_size > 200_000
    said, peak = opened_within_limits(path)
    assert said == "40000"
    assert peak < 40 << 20


@pytest.mark.parametrize("start", [b" ", b"[", b'{"hash_ids": [0], "input_length": 5}\n'])
def test_a_gzip_of_blanks_without_end_is_refused_early(tmp_path, start):
    path = tmp_path / "t.gz"
    blanks = gzip.compress(b" " * (1 << 24), 1)  # members of a gzip file follow each other
    path.write_bytes(gzip.compress(start) + blanks * 20)
    said, peak = opened_within_limits(path)
    assert re.search("neither a JSON|: more than 256 MiB of trace|a line of more than 16 MiB", said)
    assert peak < 600 << 20


def test_many_short_blank_lines_end_at_the_limit_too(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads, "MAX_BYTES", 1000)
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(mooncake(5, 0)) + "\n" * 2000)
    with pytest.raises(ConfigError, match=r"decompressed: split the file, or give --limit"):
        open_workload(str(path))
    assert len(open_workload(str(path), 1)) == 1


def test_a_missing_file_names_what_could_be_given(tmp_path):
    with pytest.raises(ConfigError, match=r"No such file.*generated:multi-turn"):
        open_workload(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="Is a directory"):
        open_workload(str(tmp_path))
    with pytest.raises(ConfigError, match="null byte"):
        open_workload("a\0b")


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        open_workload("generated:scattered", 0)


# -- text ------------------------------------------------------------------------------------------


def test_lmcache_rows_are_prompts_of_bytes_and_empty_ones_are_left_out(tmp_path):
    row = {"timestamp": 1, "session_id": "s", "input": "häh", "output": "x"}
    path = tmp_path / "t.jsonl.gz"
    lines = [row, {**row, "input": ""}, {**row, "input": None}, {**row, "session_id": "z"}]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    turns = list(open_workload(str(path)))
    assert [turn.session for turn in turns] == ["s", "z"]
    assert turns[0].tokens.tolist() == list("häh".encode())


def test_mt_bench_turns_extend_each_other(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", {"question_id": 7, "turns": ["one", "two"]})
    first, second = open_workload(path)
    assert first.session == second.session == "7"
    assert common_prefix(first.tokens, second.tokens) == len(first.tokens) < len(second.tokens)


def dialogue(task, *roles):
    traj = [{"role": role, "content": f"{task}:{n}"} for n, role in enumerate(roles)]
    return {"task_id": task, "trial": 0, "reward": 1.0, "info": {}, "traj": traj}


def test_tau_bench_calls_are_cut_before_each_assistant_message(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant", "user")
    path = tmp_path / "t.json"
    path.write_text(json.dumps([dialogue(1, *roles)], indent=2))
    first, second = open_workload(str(path))
    assert bytes(first.tokens.astype(np.uint8)) == b"<system>\n1:0\n<user>\n1:1\n"
    assert bytes(second.tokens.astype(np.uint8)).endswith(b"<assistant>\n1:2\n<tool>\n1:3\n")
    assert first.session == second.session == "1/0"


def test_tau_bench_dialogues_take_turns_eight_at_once(tmp_path):
    path = tmp_path / "t.json"
    roles = ("user", "assistant", "user", "assistant")
    path.write_text(json.dumps([dialogue(n, *roles) for n in range(10)]))
    sessions = [int(turn.session.split("/")[0]) for turn in open_workload(str(path))]
    assert sessions[:16] == [*range(8), *range(8)]
    assert sorted(sessions[16:]) == [8, 8, 9, 9]


# -- generated -------------------------------------------------------------------------------------


def test_multi_turn_prompts_extend_their_session_in_order():
    workload = open_workload("generated:multi-turn:sessions=5,turns=4,new=32")
    seen = {}
    for length, turn in zip(workload.lengths, workload, strict=True):
        before = seen.get(turn.session, np.empty(0, np.uint32))
        assert len(turn.tokens) == length == len(before) + 32
        assert common_prefix(before, turn.tokens) == len(before)
        seen[turn.session] = turn.tokens
    assert sorted(len(t) for t in seen.values()) == [128] * 5
    order = [turn.session for turn in workload]
    assert order != sorted(order)


def test_shared_prompts_share_the_prompt_and_nothing_else():
    turns = list(open_workload("generated:shared-prompt:requests=20,prompts=2,prompt=64,new=16"))
    meets = {common_prefix(a.tokens, b.tokens) for a in turns for b in turns if a is not b}
    assert meets == {0, 64}


def test_scattered_prompts_share_nothing():
    turns = list(open_workload("generated:scattered:requests=20,length=64"))
    assert {common_prefix(a.tokens, b.tokens) for a in turns for b in turns if a is not b} == {0}


def test_more_prompts_than_requests_are_not_made():
    assert len(list(open_workload("generated:shared-prompt:requests=3,prompts=1000000000"))) == 3


@pytest.mark.parametrize("kind", ["multi-turn", "shared-prompt", "scattered"])
def test_a_seed_repeats_itself_and_no_other(kind):
    def tokens(seed):
        return [t.tokens.tobytes() for t in open_workload(f"generated:{kind}:seed={seed}", 4)]

    assert len(tokens(0)) == 4
    assert tokens(0) == tokens(0)
    assert not set(tokens(0)) & set(tokens(1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("generated:", "there are multi-turn, shared-prompt, scattered"),
        ("generated:scattered:size=3", "there are requests, length, seed"),
        ("generated:scattered:length=-3", "NAME=NUMBER, each once and with digits only"),
        ("generated:scattered:length=0", "length must be at least 1"),
        (f"generated:scattered:seed={'9' * 5000}", "NAME=NUMBER, each once and with digits only"),
        ("generated:multi-turn:sessions=1000000000", "generate at most 1,000,000 of"),
        ("generated:multi-turn:new=1000000000", "of up to 16,777,216"),
        ("generated:shared-prompt:requests=9999999", "generate at most 1,000,000 of"),
        ("generated:scattered:length=99999999", "of up to 16,777,216"),
        ("generated:scattered:length", "NAME=NUMBER, each once and with digits only"),
        ("generated:scattered:length=1,length=2", "NAME=NUMBER, each once and with digits only"),
    ],
)
def test_a_wrong_generated_name_is_explained(name, message):
    with pytest.raises(ConfigError) as caught:
        open_workload(name)
    assert message in str(caught.value)


# -- the public traces -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "requests", "sessions"),
    [
        ("mooncake_conversation_trace.jsonl", 12031, 1),
        ("mooncake_synthetic_trace.jsonl", 3993, 1),
        ("lmcache_agent/miniswe.jsonl.gz", 402, 20),
        ("lmcache_agent/magagent.jsonl.gz", 693, 25),
        ("tau_bench/gpt-4o-airline.json.gz", 2454, 200),
        ("mt_bench_question.jsonl", 160, 80),
    ],
)
def test_public_traces_are_read_whole(traces, name, requests, sessions):
    workload = open_workload(str(traces / name))
    assert len(workload) == requests
    if sessions > 1:
        assert len({turn.session for turn in workload}) == sessions
    else:
        assert len(workload.build(0).tokens) == workload.lengths[0]
