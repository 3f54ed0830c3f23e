"""How one page lies in memory, on both tiers: the parts it has and where they stand.

A page has one *part* per layer (paged components) or per state tensor (snapshots). L1 is layer-first:
each part has a tensor of its own, indexed by page. L2 is page-first: the parts of one page follow
each other without gaps, in the order of this layout.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import IntegrityError
from ..spec import DTYPE_BYTES, ComponentSpec, ModelSpec, PagedSpec, PageList


class Part(msgspec.Struct, frozen=True):
    """One layer or state tensor of a page: shape and dtype of one page, and its bytes on L2."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


class PageLayout(msgspec.Struct, frozen=True):
    """The parts of one page of `component`, in L2's order; `page_bytes` is their sum."""

    component: str
    parts: tuple[Part, ...]
    page_bytes: int


def page_layout(model: ModelSpec, component: ComponentSpec) -> PageLayout:
    """Lay out one page of `component`: its P tokens, or its one state."""
    if isinstance(component, PagedSpec):
        shape: tuple[int, ...] = (
            component.tensors,
            model.page_size,
            component.kv_heads,
            component.head_dim,
        )
        shapes = [(f"layer{i}", shape, component.dtype) for i in range(component.layers)]
    else:
        shapes = [(state.name, state.shape, state.dtype) for state in component.states]
    parts: list[Part] = []
    offset = 0
    for name, shape, dtype in shapes:
        nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
        parts.append(Part(name, shape, dtype, offset, nbytes))
        offset += nbytes
    return PageLayout(component.name, tuple(parts), offset)


def page_layouts(model: ModelSpec) -> dict[str, PageLayout]:
    """Lay out every component of `model`, in the model's order."""
    return {component.name: page_layout(model, component) for component in model.components}


def checked_ids(component: str, pages: PageList, count: int) -> npt.NDArray[np.int32]:
    """Unpack page ids, refusing any outside [0, count): an index below zero would wrap around."""
    ids = np.frombuffer(pages, dtype=np.int32)
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise IntegrityError(f"{component!r}: page ids {ids.min()}..{ids.max()} of {count} pages")
    return ids
