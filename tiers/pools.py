"""L1: the tensors that hold the pages of every component on the engine's device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..spec import ModelSpec
from .layout import PageLayout, page_layouts

if TYPE_CHECKING:
    import torch

_DEVICES = ("cpu", "cuda")

Rows = npt.NDArray[np.void]
"""One part of every page, a fixed-size blob per page id: rows may be strided."""


class DevicePools:
    """Hold L1: per component one tensor a part, shaped [pages, *part], layer-first.

    A paged component has a part per layer, [tensors, P, kv_heads, head_dim]; a snapshot component
    one per state tensor. Tensors that we make are uninitialised: a page's bytes mean something only
    to its owner, after it wrote them. `lent` gives the engine's own tensors for a component (one a
    part, in order); they stay the engine's, and must outlive the pools. `pages` counts pages (slots);
    of a component that is lent it may say nothing, or what the tensors have.

    Raises `ConfigError` for a component without pages, an unknown one, a lent tensor that does not
    fit, a device that is not there, or one without room; the message says which and why.
    """

    def __init__(
        self,
        model: ModelSpec,
        pages: Mapping[str, int],
        device: str | torch.device = "cpu",
        lent: Mapping[str, Sequence[torch.Tensor]] | None = None,
    ) -> None:
        import torch

        lent = lent or {}
        self.model = model
        self.device = _device(device)
        self.layouts = page_layouts(model)
        for name in {*pages, *lent} - self.layouts.keys():
            raise ConfigError(f"L1: model {model.name!r} has no component {name!r}")
        self._parts: dict[str, list[torch.Tensor]] = {}
        self.capacity: dict[str, int] = {}
        for name, layout in self.layouts.items():
            if name in lent:
                parts = _lent(name, lent[name])
                _check_lent(layout, parts, self.device)
                given = parts[0].shape[0]
                if pages.get(name, given) != given:
                    raise ConfigError(
                        f"L1: the lent tensors of {name!r} have {given} pages, not the {pages[name]} "
                        f"that are configured"
                    )
            else:
                if pages.get(name, 0) < 1:
                    raise ConfigError(f"L1: give component {name!r} at least one page")
                parts = _make(layout, pages[name], self.device)
            self._parts[name] = parts
            self.capacity[name] = parts[0].shape[0]
        self._raw = {
            name: [part.reshape(part.shape[0], -1).view(torch.uint8) for part in parts]
            for name, parts in self._parts.items()
        }

    def view(self, component: str) -> list[torch.Tensor]:
        """Return the component's tensors, one a layer or state: the pool itself, not a copy."""
        return list(self._parts[component])

    def layer(self, component: str, index: int) -> torch.Tensor:
        """Return one layer (or state tensor) of the component, [pages, *part]; no copy."""
        return self._parts[component][index]

    def raw(self, component: str) -> list[torch.Tensor]:
        """Return the same memory as bytes: uint8 [pages, bytes of the part in one page] a part."""
        return list(self._raw[component])

    def page_bytes(self, component: str, page: int) -> list[torch.Tensor]:
        """Return one page as bytes, a uint8 vector a part; no copy."""
        return [raw[page] for raw in self._raw[component]]

    def rows(self, component: str) -> list[Rows]:
        """Return the parts as arrays of one blob a page, for copies by the CPU.

        Raises `ConfigError` where the pools are not in the CPU's memory.
        """
        if self.device.type != "cpu":
            raise ConfigError(f"pools on {self.device} have no rows for the CPU to copy")
        return [
            raw.numpy().view(np.dtype((np.void, raw.shape[1]))).reshape(-1)
            for raw in self._raw[component]
        ]


def _device(name: str | torch.device) -> torch.device:
    import torch

    try:
        device = torch.device(name)
        if device.type in _DEVICES:
            torch.empty(1, device=device)
            return device
        reason = f"L1 can be on {' or '.join(_DEVICES)}"
    except (RuntimeError, TypeError, AssertionError) as error:
        # what follows names torch's source files and call traces
        reason = str(error).partition("\n")[0].partition(", but expected")[0]
    raise ConfigError(f"device {str(name)!r} cannot be used: {reason:.200}; 'cpu' always can")


def _make(layout: PageLayout, pages: int, device: torch.device) -> list[torch.Tensor]:
    import torch

    try:
        return [
            torch.empty((pages, *part.shape), dtype=getattr(torch, part.dtype), device=device)
            for part in layout.parts
        ]
    except (RuntimeError, TypeError, MemoryError) as error:
        raise ConfigError(
            f"L1: {device} has no room for {pages * layout.page_bytes:,} bytes, {pages:,} pages of "
            f"{layout.component!r}; lower l1[{layout.component!r}]"
        ) from error


def _lent(name: str, tensors: object) -> list[torch.Tensor]:
    import torch

    parts: list[object] = list(tensors) if isinstance(tensors, Sequence) else []
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise ConfigError(f"lent tensors of {name!r}: a list of tensors is needed, one a part")
    return cast("list[torch.Tensor]", parts)


def _check_lent(layout: PageLayout, tensors: list[torch.Tensor], device: torch.device) -> None:
    where = f"lent tensors of {layout.component!r}"
    if len(tensors) != len(layout.parts):
        raise ConfigError(f"{where}: {len(layout.parts)} needed, {len(tensors)} given")
    pages = tensors[0].shape[0] if tensors[0].dim() else 0
    if pages < 1:
        raise ConfigError(f"{where}: the first dimension counts pages and must be at least 1")
    for part, tensor in zip(layout.parts, tensors, strict=True):
        what = f"{where}, {part.name}"
        shape = (pages, *part.shape)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{what}: shape must be {shape}, not {tuple(tensor.shape)}")
        if str(tensor.dtype) != f"torch.{part.dtype}":
            raise ConfigError(f"{what}: dtype must be {part.dtype}, not {tensor.dtype}")
        if tensor.device.type != device.type or device.index not in (None, tensor.device.index):
            raise ConfigError(f"{what}: must be on {device}, not on {tensor.device}")
        if not tensor.is_contiguous():
            raise ConfigError(f"{what}: must be contiguous; lend the tensor that owns the memory")
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, i) for i, t in enumerate(tensors))
    for (_, end, first), (start, _, second) in itertools.pairwise(spans):
        if start < end:
            one, two = layout.parts[min(first, second)], layout.parts[max(first, second)]
            raise ConfigError(f"{where}, {two.name}: overlaps {one.name}")
