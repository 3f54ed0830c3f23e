"""Which bytes of a Transformers model's cache object belong to which component of a cache.

    DynamicLayer                                    FULL
    DynamicSlidingWindowLayer                       SWA
    LinearAttentionLayer                            MAMBA
    LinearAttentionAnd(Full|SlidingWindow)…Layer    MAMBA, and FULL or SWA
    DummyLayer, layers that borrow another's KV     nothing

Chunked attention (Llama 4) keeps its last tokens as a window does and is treated as one: a little more
than its chunk needs, and exact. Kinds come from the model's own `DynamicCache(config=…)`, shapes and
dtypes from a forward of one token: configurations name the same extents differently in every family,
cache objects do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from ..errors import ConfigError
from ..spec import ComponentSpec, ModelSpec, PagedSpec, SnapshotSpec, StateTensor
from .digest import model_digest
from .purity import longest, model_type, refuse_impure

FULL, SWA, MAMBA = "full", "swa", "mamba"

_KINDS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    DummyLayer,
)


class KVLayer(msgspec.Struct, frozen=True):
    """The keys and values of one cache layer: part `part` of the paged component `component`."""

    layer: int
    component: str
    part: int


class StateLayer(msgspec.Struct, frozen=True):
    """One recurrent state: `kind` ("conv" or "recurrent") and `index` in its cache layer."""

    layer: int
    kind: str
    index: int
    part: int


class _Member(msgspec.Struct, frozen=True):
    """One cache layer that holds keys and values, as the forward of one token left it."""

    index: int
    layer: DynamicLayer
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def shapes(self) -> tuple[object, ...]:
        return self.keys.shape, self.values.shape, self.keys.dtype


class CacheLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model's cache object meets the pools of a cache.

    `spec` is what `CacheConfig` needs. `split` tells, for a component whose keys and values differ in
    width, how wide the keys are: both then lie behind each other in one row (MLA). `window` is the
    sliding layers' window in tokens, the current one included, 0 without such layers. A sequence has
    at most `longest` tokens, prompt and answer; None for any number.
    """

    spec: ModelSpec
    kv: tuple[KVLayer, ...]
    states: tuple[StateLayer, ...]
    split: dict[str, int]
    window: int
    longest: int | None = None

    def keeps(self, layer: int) -> str:
        """Name what a cache layer holds: "full", "swa", "mamba", two of them, or "nothing"."""
        names = [kv.component for kv in self.kv if kv.layer == layer]
        if any(state.layer == layer for state in self.states):
            names.append(MAMBA)
        return "+".join(names) or "nothing"


def describe(
    model: PreTrainedModel, *, page_size: int = 16, digest: str | None = None
) -> CacheLayout:
    """Derive what a decoder's cache holds: components, shapes, dtypes, window.

    Runs the model on one token. The spec's name goes into the fingerprint that separates stored bytes
    of different models: it is made from the configuration and from every byte of the weights. A
    `digest` of your own stands in place of the weights; it must change whenever they do.

    SWA's window is one less than the model's, which counts the current token. Raises ConfigError,
    naming the kind and where there is one the layer, for what could not be restored exactly: prefixes
    that depend on more than their tokens, other kinds of cache layers, states outside the cache
    object, layers of one component that differ in shape or window, and models without any
    full-attention layer.
    """
    kind = model_type(model)
    refuse_impure(model)
    layers = _probe(model, kind)
    paged: dict[str, list[_Member]] = {FULL: [], SWA: []}
    states: list[StateLayer] = []
    tensors: list[StateTensor] = []
    for index, layer in enumerate(layers):
        if type(layer) not in _KINDS:
            raise ConfigError(
                f"layer {index} of {kind} is a {type(layer).__name__}, which is not supported"
            )
        if isinstance(layer, LinearAttentionLayer):
            found = list(_states(layer))
            if not found:
                raise ConfigError(
                    f"layer {index} of {kind} ({type(layer).__name__}) left no state in the cache "
                    "object: it keeps it elsewhere"
                )
            for where, place, tensor in found:
                states.append(StateLayer(index, where, place, len(tensors)))
                shape = tuple(tensor.shape[1:])
                tensors.append(StateTensor(f"layer{index}_{where}{place}", shape, _dtype(tensor)))
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            component = SWA if isinstance(layer, DynamicSlidingWindowLayer) else FULL
            paged[component].append(_Member(index, layer, layer.keys, layer.values))
    if not paged[FULL]:
        raise ConfigError(f"{kind} has no full-attention layer: there is no FULL component to keep")
    components: list[ComponentSpec] = []
    kv: list[KVLayer] = []
    split: dict[str, int] = {}
    for component, members in paged.items():
        if members:
            spec, width = _paged(kind, component, members)
            components.append(spec)
            kv += [KVLayer(m.index, component, part) for part, m in enumerate(members)]
            if width:
                split[component] = width
    if tensors:
        components.append(SnapshotSpec(name=MAMBA, states=tuple(tensors)))
    return CacheLayout(
        spec=ModelSpec(
            name=f"{kind}-{model_digest(model, digest)}",
            page_size=page_size,
            components=tuple(components),
        ),
        kv=tuple(kv),
        states=tuple(states),
        split=split,
        window=_window(kind, paged[SWA]),
        longest=longest(model),
    )


def _probe(model: PreTrainedModel, kind: str) -> list[Any]:
    """Run one token through the model and return the layers of its cache object."""
    try:
        cache = DynamicCache(config=model.config)
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        with torch.inference_mode():
            model(input_ids=token, position_ids=token, cache=cache, use_cache=True)
    except Exception as error:  # what a model raises that is made for another cache, nobody knows
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{kind} does not run on a DynamicCache ({said})") from error
    return list(cache.layers)


def _states(layer: LinearAttentionLayer) -> Iterable[tuple[str, int, torch.Tensor]]:
    for where, found in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
        for place, tensor in found.items():
            if tensor is not None:
                yield where, place, tensor


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _paged(kind: str, component: str, members: list[_Member]) -> tuple[PagedSpec, int]:
    """Make a component of layers that are alike; also return the keys' width where the values' differs."""
    first, *others = members
    for other in others:
        if other.shapes != first.shapes:
            raise ConfigError(
                f"layer {other.index} of {kind} ({type(other.layer).__name__}) has keys and values "
                f"of other shapes than layer {first.index}: component {component!r} has one shape"
            )
    keys, values = first.keys, first.values
    if keys.dtype != values.dtype or keys.shape[1] != values.shape[1]:
        raise ConfigError(
            f"layer {first.index} of {kind} ({type(first.layer).__name__}) has keys and values of "
            "different dtypes or numbers of heads"
        )
    width, other_width = keys.shape[3], values.shape[3]
    fused = width != other_width
    spec = PagedSpec(
        name=component,
        rule=component,
        window=max(0, _window(kind, members) - 1),
        layers=len(members),
        kv_heads=keys.shape[1],
        head_dim=width + other_width if fused else width,
        tensors=1 if fused else 2,
        dtype=_dtype(keys),
    )
    return spec, width if fused else 0


def _window(kind: str, members: list[_Member]) -> int:
    windows = {
        member.layer.sliding_window: member.index
        for member in reversed(members)
        if isinstance(member.layer, DynamicSlidingWindowLayer)
    }
    if len(windows) > 1:
        raise ConfigError(f"sliding layers of {kind} have different windows: {sorted(windows)}")
    for window, index in windows.items():
        if window < 2:
            raise ConfigError(
                f"layer {index} of {kind} has a window of {window}: it must see another token"
            )
        return int(window)
    return 0
