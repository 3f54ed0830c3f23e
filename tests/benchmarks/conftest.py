"""A folder of harnesses that look like the peers' and measure nothing."""

import json
import sys
from pathlib import Path

import pytest
from banyankv.benchmarks import hits

HARNESS = """
import json, sys
rows = json.loads({rows!r})
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
print("something that is no row")
for row in rows[sys.argv[1]]:
    print(json.dumps(row))
"""

WORKLOAD = """
from banyankv.benchmarks import workload

replay_trace = workload.turn_order

def session_tokens(sessions):
    return [memoryview(tokens).cast("I") for tokens in workload.session_tokens(sessions)]
"""

REPLAY = {
    "op": "replay",
    "turns_s": 100.0,
    "turns_s_nohash": 50.0,
    "hit_rate": 0.25,
    "bytes_per_cached_token": 32.0,
}
MICRO = [
    {"op": operation, "L": length, "shape": shape, "median_us": 1000.0}
    for length in hits.LENGTHS
    for shape in ("chain", "one")
    for operation in ("match+indices", "lock+unlock")
] + [{"op": "evict1pages", "median_us": 4000.0}, {"op": "insert512@4k", "median_us": 50.0}]


def write_harnesses(folder: Path, workload: str = WORKLOAD) -> Path:
    """Set harnesses up as the real ones are: beside each other, with an interpreter of their own."""
    log = str(folder / "log")
    rows = json.dumps({"replay": [REPLAY], "micro": MICRO})
    for script in ("sglang_bench.py", "vllm_bench.py"):
        (folder / script).write_text(HARNESS.format(rows=rows, log=log))
    (folder / "workload.py").write_text(workload)
    for package in ("sglang", "vllm_src"):
        (folder / package).mkdir()
    (folder / "peers" / "bin").mkdir(parents=True)
    (folder / "peers" / "bin" / "python").symlink_to(sys.executable)
    return folder


@pytest.fixture(autouse=True)
def _no_real_peers(monkeypatch):
    monkeypatch.delenv("SGLANG_DIR", raising=False)
    monkeypatch.delenv("VLLM_DIR", raising=False)


@pytest.fixture
def harnesses(tmp_path) -> Path:
    return write_harnesses(tmp_path)
