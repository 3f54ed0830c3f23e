"""`banyankv check-store PATH`: read every object of an L3 store and verify it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.console import Console

from ..tiers.store.check import StoreReport, inspect
from .output import WRONG, require_writable, write_json

_RESULTS = Group("Results", sort_key=3)


def check_store(
    path: Path, /, *, json: Annotated[Path | None, Parameter(group=_RESULTS)] = None
) -> int:
    """Read every object of an L3 store and verify it; 1 is the exit code where one is bad.

    Parameters
    ----------
    path
        The store's folder.
    json
        Write the report to this file as one JSON object.

    """
    require_writable(json)
    report = inspect(path)
    Console(highlight=False, soft_wrap=True).print(describe_store(report), markup=False)
    write_json(json, report)
    return 0 if report.sound else WRONG


def describe_store(report: StoreReport) -> str:
    """Tell a store's report in lines for people."""
    lines = [
        f"{report.path}: {report.objects:,} objects",
        f"  {report.bytes:,} bytes of intact objects, {report.file_bytes:,} bytes on disk",
    ]
    lines += [
        f"  model {content.model} component {content.component}: "
        f"{content.objects:,} objects, {content.bytes:,} bytes"
        for content in report.contents
    ]
    if report.newest:
        lines.append(f"  written from {_time(report.oldest)} to {_time(report.newest)}")
    if report.unclean:
        lines.append("  in use, or not closed by the process that used it last")
    if not report.readable:
        lines.append(f"  NOT READABLE: {report.problem}")
    lines += [f"  BAD {bad.key}: {bad.reason}: {bad.detail}" for bad in report.bad]
    if report.bad_objects > len(report.bad):
        lines.append(f"  and {report.bad_objects - len(report.bad):,} more bad objects")
    lines.append("sound" if report.sound else f"NOT SOUND: {report.bad_objects:,} bad objects")
    return "\n".join(lines)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
