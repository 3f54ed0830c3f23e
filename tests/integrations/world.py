"""Tiny models with caches around them, and the same models without."""

import functools
import itertools
import os
import random
from contextlib import asynccontextmanager

import torch
from banyankv import CacheConfig, PagedSpec, StoreConfig, Tier, open_cache
from banyankv.integrations.tiny import FAMILIES, WINDOW, tiny_model
from banyankv.integrations.transformers import TransformersEngine, describe
from transformers import DynamicCache
from transformers.utils import logging

logging.set_verbosity_error()
torch.set_num_threads(1)

PAGE, CHUNK, GRID = 8, 32, 64
DISPATCH = os.environ.get("BANYANKV_DISPATCH", "direct")
L3_CHUNK = 256
ATOL = 1e-4

SERVED = [name for name in FAMILIES if name not in {"jamba", "minimax", "recurrent-gemma"}]
# One per kind: everything in one (delta net, convolution, hybrid layers, several states a layer),
# full and sliding, full and delta net, MLA, Mamba-2 beside and between, convolution, Mamba-1.
KINDS = [
    "lara-mini",
    "zaya",
    "inkling2",
    "gemma3",
    "qwen3-next",
    "kimi-linear",
    "falcon-h1",
    "lfm2",
]


@functools.cache
def model_of(family):
    return tiny_model(family)


@functools.cache
def layout_of(family, page=PAGE):
    return describe(model_of(family), page_size=page)


def has_states(family):
    return bool(layout_of(family).states)


def tokens(seed, count):
    return random.Random(seed).choices(range(256), k=count)


class Engine(TransformersEngine):
    """An engine that remembers where its forwards were cut."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.spans = []

    async def compute(self, sequence, end):
        if sequence.position < end:
            self.spans.append((sequence.position, end))
        await super().compute(sequence, end)


@asynccontextmanager
async def engine_of(
    family, *, pages=96, states=48, store=None, page=PAGE, dispatch=DISPATCH, layout=None, **options
):
    """Open a cache on a tiny model: `pages` of L1 for each paged component, four times that of L2."""
    layout = layout or layout_of(family, page)
    l1 = {c.name: pages if isinstance(c, PagedSpec) else states for c in layout.spec.components}
    config = CacheConfig(
        model=layout.spec,
        l1=l1,
        l2={name: 4 * count for name, count in l1.items()},
        store=StoreConfig(path=str(store), max_bytes=1 << 28) if store else None,
        prefetch_threshold=1,
        dispatch=dispatch,
    )
    async with open_cache(config) as cache:
        yield Engine(model_of(family), cache, layout, **({"chunk": CHUNK} | options))
        await cache.settle()
        await cache.check()
        assert (await cache.stats()).leases == 0


async def lower(cache, tier):
    """Leave what has been published on `tier` and below, and nothing above."""
    await cache.settle()
    if tier == Tier.L3:
        await cache.flush()
    elif tier == Tier.L2:
        for component, pages in cache.config.l1.items():
            await cache.evict(component, pages)


def hit_of(sequence):
    """Return the reused tokens by tier."""
    hit = sequence.lease.hit
    return (hit.l1, hit.l2, hit.l3)


async def through(sequence):
    """Prefill all of a prompt and return the logits."""
    while not await sequence.prefill():
        pass
    return sequence.logits


def cold(family, prompt, cuts=()):
    """Return the logits of a prompt's last token without any cache, in one forward or cut at `cuts`."""
    return _cold(family, tuple(prompt), tuple(cuts))


@functools.cache
def _cold(family, prompt, cuts):
    model = model_of(family)
    kv = DynamicCache(config=model.config)
    bounds = [0, *cuts, len(prompt)]
    with torch.inference_mode():
        for start, end in itertools.pairwise(bounds):
            logits = forward(model, kv, prompt, start, end)
    return logits


def cold_generation(family, prompt, count):
    """Return `count` greedily chosen tokens without any cache: one forward, then token by token."""
    model = model_of(family)
    kv = DynamicCache(config=model.config)
    known, start = list(prompt), 0
    with torch.inference_mode():
        while len(known) < len(prompt) + count:
            logits = forward(model, kv, known, start, len(known))
            start = len(known)
            known.append(int(logits.argmax()))
    return known[len(prompt) :]


def forward(model, kv, prompt, start, end):
    return model(
        input_ids=torch.tensor([prompt[start:end]]),
        position_ids=torch.arange(start, end).unsqueeze(0),
        cache=kv,
        use_cache=True,
        logits_to_keep=1,
    ).logits[0, -1]


def same(one, other):
    return torch.allclose(one, other, atol=ATOL, rtol=0)


__all__ = [
    "ATOL",
    "CHUNK",
    "FAMILIES",
    "GRID",
    "KINDS",
    "L3_CHUNK",
    "PAGE",
    "SERVED",
    "WINDOW",
    "Engine",
    "cold",
    "cold_generation",
    "engine_of",
    "has_states",
    "hit_of",
    "layout_of",
    "lower",
    "model_of",
    "same",
    "through",
    "tokens",
]
