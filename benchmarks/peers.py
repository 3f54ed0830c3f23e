"""Harnesses of other caches, run as processes of their own between our rounds.

The harnesses are not part of this package: `--peers DIR` names a folder with `workload.py`,
`sglang_bench.py` and `vllm_bench.py`. What they need is set up beside each other: the peers'
interpreter in `peers/bin/python`, their packages in `sglang` and `vllm_src`, in DIR itself or
where SGLANG_DIR and VLLM_DIR point.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import msgspec
import trio

from ..errors import ConfigError
from . import workload

SGLANG, VLLM = "sglang_bench.py", "vllm_bench.py"
_SMALL = 3
"""Sessions that suffice to see that two workloads are the same."""


class Peers:
    """What can be run. Raises `ConfigError` where something is missing or runs other tokens."""

    def __init__(self, directory: Path, gate: float = 0.0) -> None:
        self._directory = directory
        self._gate = gate
        sglang = Path(os.environ.get("SGLANG_DIR", directory / "sglang"))
        vllm = Path(os.environ.get("VLLM_DIR", directory / "vllm_src"))
        self._python = sglang.parent / "peers" / "bin" / "python"
        for needed in (directory / SGLANG, directory / "workload.py", sglang, self._python):
            if not needed.exists():
                raise ConfigError(f"--peers: {needed} is missing; the harness's README sets it up")
        self.has_vllm = vllm.exists() and (directory / VLLM).exists()
        self._environment = {**os.environ, "SGLANG_DIR": str(sglang), "VLLM_DIR": str(vllm)}
        self._compare_workloads()

    def _compare_workloads(self) -> None:
        """Be sure that peers run the same tokens in the same order."""
        spec = importlib.util.spec_from_file_location(
            "_peers_workload", self._directory / "workload.py"
        )
        if spec is None or spec.loader is None:
            raise ConfigError(f"--peers: {self._directory / 'workload.py'} cannot be imported")
        theirs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        for kind in ("uniform", "rolling"):
            if theirs.replay_trace(kind) != workload.turn_order(kind):
                raise ConfigError(f"--peers: the harness runs another {kind} order")
        ours = workload.session_tokens(_SMALL)
        for mine, other in zip(ours, theirs.session_tokens(_SMALL), strict=True):
            if list(memoryview(mine).cast("I")) != list(other):
                raise ConfigError("--peers: the harness runs other tokens")

    async def run(self, script: str, *arguments: str) -> list[dict[str, Any]]:
        """Run one harness to its end; answer the objects that it printed, one a line.

        Raises `ConfigError` with the last line of its complaint where it fails. The machine is idle
        meanwhile, but for it.
        """
        command = [str(self._python), str(self._directory / script), *arguments]
        done = await trio.run_process(
            [*command, "--gate", str(self._gate)],
            env=self._environment,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        if done.returncode or not lines:
            complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
            raise ConfigError(f"{script} {' '.join(arguments)}: {complaint[-1]}")
        return [msgspec.json.decode(line) for line in lines]


def find(rows: list[dict[str, Any]], **wanted: str | int) -> dict[str, Any]:
    """Return the harness's row that says what is wanted; raises `ConfigError` where there is none."""
    for row in rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            return row
    raise ConfigError(f"the harness answered no row with {wanted}")
