"""Compare reuse with a model that has computed nothing else: layer by layer, and across lengths.

Layer by layer, from each tier: both runs cut the prompt at the same places, so that they add up the
same numbers in the same order and may be compared bit for bit.

Across lengths: what a short prompt has left is reused by a long one, and the other way round, each
compared with one forward over the whole prompt. That finds what equal cuts cannot: keys that depend
on how long a sequence is or on what comes behind, and layers that do not go on from their state.

The model that is compared with shares the weights and nothing else with the one that is served, which
may have changed by what it has run.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from ..errors import ConfigError, IntegrityError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig, StoreConfig
from ..spec import PagedSpec, Tier
from ..tiers.store.keys import chunk_tokens
from .layout import CacheLayout, describe
from .transformers import TransformersEngine

_TAIL = 40
"""Tokens behind the boundary, at least: enough for a few forwards."""

_BEHIND = 3
"""Tokens of a short prompt behind what a long one shares with it."""

_STORE_BYTES = 1 << 30

Cuts = list[int]
Layers = list[list[torch.Tensor]]
"""The tensors of each layer."""


class LayerDifference(msgspec.Struct, frozen=True):
    """The largest absolute differences at one layer: of what was restored, and of its output.

    `keeps` names the components that the layer's cache belongs to. None where there is nothing to
    compare: a layer without a cache, or decoder layers that cannot be told apart.
    """

    layer: int
    keeps: str
    restored: float | None
    output: float | None

    def differs(self, atol: float) -> bool:
        """Return whether a difference is more than `atol`; what is no number differs."""
        return any(not off <= atol for off in (self.restored, self.output) if off is not None)


class TierReport(msgspec.Struct, frozen=True):
    """One comparison: `boundary` tokens were restored from `tier`; `logits` is the difference at the end."""

    tier: str
    boundary: int
    tokens: int
    layers: tuple[LayerDifference, ...]
    logits: float

    def first(self, atol: float) -> LayerDifference | None:
        """Return the first layer that differs by more than `atol`, None where there is none."""
        return next((layer for layer in self.layers if layer.differs(atol)), None)


class LengthReport(msgspec.Struct, frozen=True):
    """One comparison across lengths: a prompt of `tokens` after one of `before`, sharing `reused`.

    `logits` is the difference from one forward over the whole prompt, `bound` what `rounding` allows.
    """

    before: int
    tokens: int
    reused: int
    logits: float
    bound: float

    def differs(self, atol: float) -> bool:
        """Return whether the difference is more than `bound` and `atol`; what is no number differs."""
        return not self.logits <= max(self.bound, atol)


class Report(msgspec.Struct, frozen=True):
    """All comparisons of one model."""

    tiers: tuple[TierReport, ...]
    lengths: tuple[LengthReport, ...]


async def verify_layers(
    model: PreTrainedModel,
    *,
    page_size: int = 16,
    tokens: int | None = None,
    seed: int = 0,
) -> Report:
    """Restore a random prompt's prefix from L1, from L2 and from L3, and compare with a cold run.

    `tokens` is the prompt's length, by default enough to fill the model's window; what is restored is
    its last whole L3 chunk's end. Opens caches and a store of its own (in a temporary folder). Raises
    ConfigError for a model that cannot be driven or a prompt too short, IntegrityError where a tier
    did not give back what it was given.
    """
    pristine = _fresh(model)
    layout = describe(model, page_size=page_size)
    chunk = chunk_tokens(page_size)
    length = chunk + layout.window + _TAIL if tokens is None else tokens
    boundary = (length - 1) // chunk * chunk
    if boundary < chunk:
        raise ConfigError(f"the prompt must be longer than {chunk} tokens, not {length}")
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    dice = random.Random(seed)  # noqa: S311
    words = partial(dice.choices, range(vocabulary))
    with TemporaryDirectory(prefix="banyankv-verify-") as folder:
        config = CacheConfig(
            model=layout.spec,
            l1=_room(layout, length, 2),
            l2=_room(layout, length, 4),
            store=StoreConfig(path=str(Path(folder) / "store"), max_bytes=_STORE_BYTES),
            prefetch_threshold=1,
            device=str(model.device),
        )
        async with open_cache(config) as cache:
            whole = TransformersEngine(model, cache, layout, chunk=length, spacing=0)
            shared = max(page_size, chunk // 2 // page_size * page_size)
            lengths: list[LengthReport] = []
            short = shared + _BEHIND
            for first, then in ((short, length), (length, short)):
                prefix = words(k=shared)
                before, prompt = ([*prefix, *words(k=count - shared)] for count in (first, then))
                lengths.append(await _across(whole, pristine, before, prompt, shared))
            engine = TransformersEngine(model, cache, layout, chunk=chunk)
            prefix = words(k=boundary)
            await _prefill(engine, [*prefix, 0], boundary)
            tiers: list[TierReport] = []
            for tier in Tier:
                # Its own end, so that nothing behind the boundary is known from the tier before.
                prompt = [*prefix, *words(k=length - boundary)]
                tiers.append(await _compare(engine, pristine, prompt, boundary, tier))
            return Report(tuple(tiers), tuple(lengths))


def rounding(model: PreTrainedModel, logits: torch.Tensor) -> float:
    """Return how far logits may be off because a prompt is cut elsewhere: half the digits of the dtype.

    Other cuts add up the same numbers in another order. What that changes grows with the layers and the
    tokens from the last digit on, and a wrong prefix changes the first ones.
    """
    return math.sqrt(torch.finfo(model.dtype).eps) * float(logits.abs().max())


def _fresh(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model but for its weights: what it changes while it runs is the copy's own."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})


def _room(layout: CacheLayout, length: int, prompts: int) -> dict[str, int]:
    pages = -(-length // layout.spec.page_size) + 1
    return {
        component.name: prompts * (pages if isinstance(component, PagedSpec) else 4)
        for component in layout.spec.components
    }


async def _lower(cache: Cache, tier: Tier) -> None:
    """Leave the published prefix on `tier` and below."""
    await cache.settle()
    if tier == Tier.L3:
        await cache.flush()
    elif tier == Tier.L2:
        for component, pages in cache.config.l1.items():
            await cache.evict(component, pages)


async def _prefill(
    engine: TransformersEngine, prompt: list[int], shared: int
) -> tuple[torch.Tensor, int]:
    """Run a prompt and keep what others share with it; return the logits and what was reused."""
    async with await engine.start(prompt, keep=[shared]) as sequence:
        while not await sequence.prefill():
            pass
        return _known(sequence.logits), sequence.lease.length


async def _across(
    engine: TransformersEngine,
    pristine: PreTrainedModel,
    before: list[int],
    prompt: list[int],
    shared: int,
) -> LengthReport:
    await _prefill(engine, before, shared)
    warm, reused = await _prefill(engine, prompt, shared)
    if reused != shared:
        raise IntegrityError(f"{reused} of {shared} tokens were reused")
    model = _fresh(pristine)
    places = torch.arange(len(prompt), device=model.device).unsqueeze(0)
    ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        alone = model(input_ids=ids, position_ids=places, use_cache=False, logits_to_keep=1).logits[
            0, -1
        ]
    bound = rounding(model, alone)
    return LengthReport(len(before), len(prompt), reused, _difference(warm, alone), bound)


async def _compare(
    engine: TransformersEngine,
    pristine: PreTrainedModel,
    prompt: list[int],
    boundary: int,
    tier: Tier,
) -> TierReport:
    await _lower(engine.cache, tier)
    async with await engine.start(prompt) as sequence:
        hit = (sequence.lease.hit.l1, sequence.lease.hit.l2, sequence.lease.hit.l3)
        if hit[tier] != boundary:
            raise IntegrityError(
                f"{tier.name} gave {hit[tier]} of {boundary} tokens (by tier: {hit})"
            )
        warm = _contents(sequence.kv)
        cuts = [boundary]
        with _outputs(engine.model) as warm_outputs:
            while not await sequence.prefill():
                cuts.append(sequence.position)
        warm_logits = _known(sequence.logits)
    cold, cold_outputs, cold_logits = _cold(
        _fresh(pristine), engine.chunk, prompt, [*cuts, len(prompt)]
    )
    layers = tuple(
        LayerDifference(index, engine.layout.keeps(index), restored, output)
        for index, (restored, output) in enumerate(
            zip_longest(_each(warm, cold), _each(warm_outputs, cold_outputs))
        )
    )
    return TierReport(
        tier.name, boundary, len(prompt), layers, _difference(warm_logits, cold_logits)
    )


def _known(logits: torch.Tensor | None) -> torch.Tensor:
    if logits is None:
        raise IntegrityError("the prompt was not computed to its end")
    return logits


def _cold(
    model: PreTrainedModel, chunk: int, prompt: list[int], cuts: Cuts
) -> tuple[Layers, Layers, torch.Tensor]:
    """Run without a cache, cut alike; return the cache object at `cuts[0]`, outputs behind it, logits."""
    kv = DynamicCache(config=model.config)
    starts = range(0, cuts[0], chunk)
    contents: Layers = []
    logits = torch.empty(0)
    with torch.inference_mode(), _outputs(model) as outputs:
        for start, end in pairwise([*starts, *cuts]):
            if start == cuts[0]:
                contents = _contents(kv)
                for layer in outputs:
                    layer.clear()
            logits = model(
                input_ids=torch.tensor([prompt[start:end]], device=model.device),
                position_ids=torch.arange(start, end, device=model.device).unsqueeze(0),
                cache=kv,
                use_cache=True,
                logits_to_keep=1,
            ).logits[0, -1]
    return contents, outputs, logits


def _contents(kv: DynamicCache) -> Layers:
    """Copy all tensors of a cache object, by layer."""
    found: Layers = []
    for layer in kv.layers:
        tensors: list[torch.Tensor | None] = []
        if isinstance(layer, DynamicLayer):
            tensors += [layer.keys, layer.values]
        if isinstance(layer, LinearAttentionLayer):
            tensors += [*layer.conv_states.values(), *layer.recurrent_states.values()]
        found.append([tensor.clone() for tensor in tensors if tensor is not None])
    return found


@contextmanager
def _outputs(model: PreTrainedModel) -> Generator[Layers]:
    """Collect what each decoder layer returns, call by call; nothing where they are not in one list."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)
    layers = next(lists, torch.nn.ModuleList())
    collected: Layers = [[] for _ in layers]

    def keep(index: int, _layer: torch.nn.Module, _given: Any, output: Any) -> None:
        collected[index].append(output if isinstance(output, torch.Tensor) else output[0])

    hooks = [
        layer.register_forward_hook(partial(keep, index)) for index, layer in enumerate(layers)
    ]
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()


def _each(some: Layers, others: Layers) -> list[float | None]:
    """Return the largest difference at each layer."""
    return [
        max((_difference(*pair) for pair in zip(one, other, strict=True)), default=None)
        for one, other in zip(some, others, strict=True)
    ]


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
