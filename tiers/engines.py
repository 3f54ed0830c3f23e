"""Which copy engine serves a device."""

from __future__ import annotations

from ..actors import Observer
from ..actors.faults import Faults
from .arena import HostArena
from .copy import Before, CopyEngine, ThreadCopyEngine
from .fences import Fences, FenceTable
from .pools import DevicePools


def copy_engine(
    pools: DevicePools,
    arena: HostArena,
    fences: Fences,
    *,
    observer: Observer | None = None,
    before: Before | None = None,
    faults: Faults | None = None,
) -> CopyEngine:
    """Make the engine for the pools' device: on its streams where it has some, else worker threads."""
    if isinstance(fences, FenceTable):
        from .stream_copy import StreamCopyEngine

        return StreamCopyEngine(
            pools, arena, fences, observer=observer, before=before, faults=faults
        )
    return ThreadCopyEngine(pools, arena, observer=observer, before=before, faults=faults)
