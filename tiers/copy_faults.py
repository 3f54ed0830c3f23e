"""What a fault plan can do to a batch of copies: `where="copy"`, key `L1-L2` or `L2-L1`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt
import trio

from ..actors.faults import FaultAction, FaultKind, InjectedCrash
from ..errors import TierUnavailable

Ids = npt.NDArray[np.int32]
Groups = dict[str, tuple[Ids, Ids]]
"""What a batch comes to: per component the source and the target ids."""


async def go_wrong(
    action: FaultAction, groups: Groups, copy: Callable[[Groups], Awaitable[None]]
) -> None:
    """Copy `groups` as `action` says, instead of as it should be.

    `delay` and `duplicate` end well; `hang` waits to be cancelled, before anything was touched.
    The others fail, as a device does that notices: `fail` at once, `partial` when half of the pages
    have been copied, `corrupt` when the targets hold bytes of the wrong pages, `crash` with an error
    that is no refusal. Nothing else can be planned for a copy.
    """
    match action.what:
        case FaultKind.DELAY:
            await trio.sleep(action.seconds)
            await copy(groups)
        case FaultKind.DUPLICATE:
            await copy(groups)
            await copy(groups)
        case FaultKind.HANG:
            await trio.sleep_forever()
        case FaultKind.PARTIAL:
            half = {name: (s[: len(s) // 2], t[: len(t) // 2]) for name, (s, t) in groups.items()}
            await copy(half)
            raise TierUnavailable("injected: half of the pages were copied")
        case FaultKind.CORRUPT:
            await copy({name: (np.roll(s, 1), t) for name, (s, t) in groups.items()})
            raise TierUnavailable("injected: the wrong bytes were copied")
        case FaultKind.CRASH:
            raise InjectedCrash("injected: the copy engine crashed")
        case _:
            raise TierUnavailable("injected: the copy failed")
