"""The CUDA device: torch's streams, events and kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import torch


class CudaDevice:
    """See `Device`. Its events block instead of spinning."""

    pins = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_stream(self) -> torch.cuda.Stream:
        """See `Device`."""
        return torch.cuda.Stream(self._device)

    def stream_at(self, handle: int) -> torch.cuda.Stream:
        """See `Device`."""
        if handle:
            return torch.cuda.ExternalStream(handle, device=self._device)
        return torch.cuda.current_stream(self._device)

    def handle_of(self, stream: torch.cuda.Stream) -> int:
        """See `Device`."""
        return int(stream.cuda_stream)

    def using(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """See `Device`."""
        return torch.cuda.stream(stream)

    def new_event(self) -> torch.cuda.Event:
        """See `Device`."""
        return torch.cuda.Event(blocking=True)

    def staging(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Device`."""
        return (
            torch.empty(size, dtype=torch.uint8, device=self._device),
            torch.empty(size, dtype=torch.uint8, pin_memory=True),
        )

    def ids(self, ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """See `Device`."""
        return torch.tensor(ids, dtype=torch.int64, device=self._device)

    def gather(self, target: torch.Tensor, pool: torch.Tensor, ids: torch.Tensor) -> None:
        """See `Device`."""
        torch.index_select(pool, 0, ids, out=target)

    def scatter(self, pool: torch.Tensor, ids: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        pool.index_copy_(0, ids, source)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        target.copy_(source, non_blocking=True)
