"""One component of each kind that the library has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyankv.components.full import FullComponent
from banyankv.components.mamba import MambaComponent
from banyankv.components.swa import SWAComponent

COMPONENTS: dict[str, Callable[[], Any]] = {
    "full": lambda: FullComponent("full", 2),
    "swa": lambda: SWAComponent("swa", 2, 5),
    "mamba": lambda: MambaComponent("mamba", 2),
}
