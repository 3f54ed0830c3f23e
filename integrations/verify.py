"""Compare reuse with a cold run, layer by layer: what is restored, and what is computed behind it.

Both runs cut the prompt at the same places, so that they add up the same numbers in the same order
and may be compared bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
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

_STORE_BYTES = 1 << 30

Cuts = list[int]


class LayerDifference(msgspec.Struct, frozen=True):
    """The largest absolute differences at one layer: of what was restored, and of its output.

    `keeps` names the components that the layer's cache belongs to.
    """

    layer: int
    keeps: str
    restored: float
    output: float


class TierReport(msgspec.Struct, frozen=True):
    """One comparison: `boundary` tokens were restored from `tier`; `logits` is the difference at the end."""

    tier: str
    boundary: int
    tokens: int
    layers: tuple[LayerDifference, ...]
    logits: float

    def first(self, atol: float) -> LayerDifference | None:
        """Answer the first layer that differs by more than `atol`, None where there is none.

        A difference that is no number differs.
        """
        for layer in self.layers:
            if not (layer.restored <= atol and layer.output <= atol):
                return layer
        return None


async def verify_layers(
    model: PreTrainedModel,
    *,
    page_size: int = 16,
    tokens: int | None = None,
    seed: int = 0,
) -> list[TierReport]:
    """Restore a random prompt's prefix from L1, from L2 and from L3, and compare with a cold run.

    `tokens` is the prompt's length, by default enough to fill the model's window; what is restored is
    its last whole L3 chunk's end. Opens caches and a store of its own (in a temporary folder). Raises
    ConfigError for a model that cannot be driven or a prompt too short, IntegrityError where a tier
    did not give back what it was given.
    """
    layout = describe(model, page_size=page_size)
    chunk = chunk_tokens(page_size)
    length = chunk + layout.window + _TAIL if tokens is None else tokens
    boundary = (length - 1) // chunk * chunk
    if boundary < chunk:
        raise ConfigError(f"the prompt must be longer than {chunk} tokens, not {length}")
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    dice = random.Random(seed)  # noqa: S311
    prefix = dice.choices(range(vocabulary), k=boundary)
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
            engine = TransformersEngine(model, cache, layout, chunk=chunk)
            async with await engine.start([*prefix, 0]) as sequence:
                while not await sequence.prefill():
                    pass
            reports: list[TierReport] = []
            for tier in Tier:
                # Its own end, so that nothing behind the boundary is known from the tier before.
                ending = dice.choices(range(vocabulary), k=length - boundary)
                reports.append(await _compare(engine, [*prefix, *ending], boundary, tier))
            return reports


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


async def _compare(
    engine: TransformersEngine, prompt: list[int], boundary: int, tier: Tier
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
        warm_logits = sequence.logits
    cold, cold_outputs, cold_logits = _cold(engine, prompt, [*cuts, len(prompt)])
    if warm_logits is None:
        raise IntegrityError("the prompt was not computed to its end")
    layers = tuple(
        LayerDifference(
            index,
            engine.layout.keeps(index),
            max(
                (_difference(*pair) for pair in zip(warm[index], cold[index], strict=True)),
                default=0.0,
            ),
            _difference(warm_outputs[index], cold_outputs[index]),
        )
        for index in range(len(warm))
    )
    return TierReport(
        tier.name, boundary, len(prompt), layers, _difference(warm_logits, cold_logits)
    )


def _cold(
    engine: TransformersEngine, prompt: list[int], cuts: Cuts
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], torch.Tensor]:
    """Run without a cache, cut alike; answer the cache object at `cuts[0]`, outputs behind it, logits."""
    model = engine.model
    kv = DynamicCache(config=model.config)
    starts = range(0, cuts[0], cuts[0] if engine.layout.stepwise else engine.chunk)
    contents: list[list[torch.Tensor]] = []
    logits = torch.empty(0)
    with torch.inference_mode(), _outputs(model) as outputs:
        for start, end in pairwise([*starts, *cuts]):
            if start == cuts[0]:
                contents = _contents(kv)
                outputs.clear()
            logits = model(
                input_ids=torch.tensor([prompt[start:end]], device=model.device),
                position_ids=torch.arange(start, end, device=model.device).unsqueeze(0),
                cache=kv,
                use_cache=True,
                logits_to_keep=1,
            ).logits[0, -1]
    return contents, outputs, logits


def _contents(kv: DynamicCache) -> list[list[torch.Tensor]]:
    """Copy all tensors of a cache object, by layer."""
    found: list[list[torch.Tensor]] = []
    for layer in kv.layers:
        tensors: list[torch.Tensor | None] = []
        if isinstance(layer, DynamicLayer):
            tensors += [layer.keys, layer.values]
        if isinstance(layer, LinearAttentionLayer):
            tensors += [*layer.conv_states.values(), *layer.recurrent_states.values()]
        found.append([tensor.clone() for tensor in tensors if tensor is not None])
    return found


@contextmanager
def _outputs(model: PreTrainedModel) -> Generator[list[torch.Tensor]]:
    """Collect what each decoder layer answers, all forwards of the block behind each other."""
    layers = next(
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == model.config.get_text_config(decoder=True).num_hidden_layers
    )
    collected: list[torch.Tensor] = []

    def keep(index: int, _layer: torch.nn.Module, _given: Any, output: Any) -> None:
        hidden: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
        if len(collected) == index:
            collected.append(hidden)
        else:
            collected[index] = torch.cat([collected[index], hidden], dim=1)

    hooks = [
        layer.register_forward_hook(partial(keep, index)) for index, layer in enumerate(layers)
    ]
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
