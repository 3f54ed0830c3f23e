"""Drive a Hugging Face Transformers decoder with a prefix cache.

A turn, with `layout = describe(model)` and a cache opened on `layout.spec`:

    engine = TransformersEngine(model, cache, layout)
    async with await engine.start(prompt) as sequence:
        while not await sequence.prefill():
            pass
        for _ in range(100):
            await sequence.push(sequence.argmax())
            await engine.step([sequence])
        await sequence.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, TypeVar

import torch
import trio
from transformers import PreTrainedModel

from ..errors import ConfigError
from ..spec import Namespace
from ..tiers.store.keys import chunk_tokens
from .batch import BatchedCache
from .layout import CacheLayout, describe
from .leased_cache import LeasedCache
from .sequence import Sequence

if TYPE_CHECKING:
    from ..runtime.cache import Cache
    from ..runtime.lease import Lease

__all__ = ["CacheLayout", "LeasedCache", "Sequence", "TransformersEngine", "describe"]

T = TypeVar("T")


class TransformersEngine:
    """Run requests on one model with one cache, whose L1 is on the model's device.

    `chunk` is the most tokens of one forward, `spacing` the distance in tokens, rounded up to a page,
    of extra places where states and windows are kept, in prompts and in answers. 0 means none: only
    where prompts and turns end and where others forked off. By default it is the length of a chunk of
    the store where the cache was configured with one, because a store keeps states at chunks' ends
    only, and 0 where not.
    With `threaded`, forwards run on a worker thread, one at a time, and the caller's other tasks go on
    meanwhile; a forward that has begun is not interrupted by cancellation. With `batched`, a decode
    step is one forward for all its sequences, which reads keys and values from L1's pages.

    Raises ConfigError where cache and model do not belong together.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache,
        layout: CacheLayout,
        *,
        chunk: int = 256,
        spacing: int | None = None,
        threaded: bool = False,
        batched: bool = False,
    ) -> None:
        if cache.config.model != layout.spec:
            raise ConfigError(
                f"the cache is one of {cache.config.model.name!r}, the layout of {layout.spec.name!r}"
            )
        device = cache.pools.device
        if device.type != model.device.type or device.index not in (None, model.device.index):
            raise ConfigError(f"L1 is on {device}, the model on {model.device}")
        if model.training:
            raise ConfigError("the model is in training mode: call its eval() first")
        if spacing is None:
            spacing = chunk_tokens(layout.spec.page_size) if cache.config.store else 0
        if chunk < 1 or spacing < 0:
            raise ConfigError("chunk must be at least 1 and spacing not negative, in tokens")
        config = model.config.get_text_config(decoder=True)
        if batched and "chunked_attention" in (getattr(config, "layer_types", None) or ()):
            raise ConfigError(
                "chunked attention counts chunks from the first place of a batch, which is another "
                "token in each sequence: decode without batched"
            )
        self.model = model
        self.cache = cache
        self.layout = layout
        self.page_size = layout.spec.page_size
        self.chunk = chunk
        self.spacing = -(-spacing // self.page_size) * self.page_size
        self.batched = batched
        self._limiter = trio.CapacityLimiter(1) if threaded else None

    async def start(
        self,
        tokens: Several[int],
        *,
        keep: Iterable[int] = (),
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Sequence:
        """Lease the longest reusable prefix of a prompt and restore it into a new cache object.

        `keep` names positions in tokens where others are expected to fork off, such as the end of a
        system prompt. The other arguments and errors are those of `Cache.acquire`; also raises
        ConfigError for more tokens than `layout.longest`.
        """
        prompt = list(tokens)
        self.check_length(len(prompt))
        lease = await self.cache.acquire(
            prompt, namespace=namespace, session=session, priority=priority, deadline=deadline
        )
        try:
            kv = await self._run(lambda: self.restore(lease))
            return Sequence(self, lease, kv, prompt, keep)
        except BaseException:
            await lease.release()
            raise

    def check_length(self, tokens: int) -> None:
        """Raise ConfigError for a sequence longer than `layout.longest`: its prefix would be another."""
        longest = self.layout.longest
        if longest is not None and tokens > longest:
            raise ConfigError(
                f"{tokens} tokens are too many: beyond {longest}, {self.layout.spec.name} changes its "
                "rotary embedding for all tokens, also for those whose keys are kept"
            )

    def restore(self, lease: Lease) -> LeasedCache:
        """Make the model's cache object as it was at `lease.length`; copies each page once."""
        with torch.inference_mode():
            return LeasedCache(self.model, self.cache.pools, self.layout, lease)

    async def step(self, sequences: Several[Sequence]) -> None:
        """Compute the token that was pushed to each of the sequences; renews their `logits`.

        One by one they get exactly what each alone would get. `batched`, they share one forward: the
        same up to the order in which numbers are added up (1e-6 in float32).
        """
        if not self.batched:
            for sequence in sequences:
                await self.compute(sequence, len(sequence.tokens))
            return
        pushed = [s for s in sequences if s.position == len(s.tokens) - 1 and s.ready]
        if len(pushed) < len(sequences):
            raise ConfigError("step: push one token to each sequence whose prompt is through")
        if pushed:
            logits = await self._run(lambda: self._forward_batch(pushed))
            for sequence, line in zip(pushed, logits, strict=True):
                sequence.note(len(sequence.tokens), line)
            for sequence in pushed:
                await sequence.keep()

    async def generate(self, sequence: Sequence, count: int) -> list[int]:
        """Prefill what is missing and return `count` greedily chosen tokens; ends the turn.

        The last token is chosen but not computed, so it is not part of what is published.
        """
        self.check_length(sequence.prompt + count - 1)
        while not await sequence.prefill():
            pass
        answer = [sequence.argmax()]
        while len(answer) < count:
            await sequence.push(answer[-1])
            await self.step([sequence])
            answer.append(sequence.argmax())
        await sequence.finish()
        return answer

    async def compute(self, sequence: Sequence, end: int) -> None:
        """Run the model over a sequence's tokens up to `end`, for which the lease has room."""
        start = sequence.position
        if start < end:
            logits = await self._run(lambda: self.forward(sequence, start, end))
            sequence.note(end, logits)
            await sequence.keep()

    def forward(self, sequence: Sequence, start: int, end: int) -> torch.Tensor:
        """Run the model over [start, end) and return the last token's logits; no awaiting, any thread."""
        with torch.inference_mode():
            sequence.kv.attend(start, end)
            device = self.model.device
            output = self.model(
                input_ids=torch.tensor([sequence.tokens[start:end]], device=device),
                # Some families number positions from 0 where they are not told (Bamba).
                position_ids=torch.arange(start, end, device=device).unsqueeze(0),
                cache=sequence.kv,
                use_cache=True,
                logits_to_keep=1,
            )
            sequence.kv.attended()
            logits: torch.Tensor = output.logits[0, -1]
            return logits

    def _forward_batch(self, sequences: list[Sequence]) -> torch.Tensor:
        positions = [sequence.position for sequence in sequences]
        device = self.model.device
        with torch.inference_mode():
            leases = [sequence.lease for sequence in sequences]
            kv = BatchedCache(self.model, self.cache.pools, self.layout, leases, positions)
            for sequence in sequences:
                sequence.kv.leave_pages()
            output = self.model(
                input_ids=torch.tensor([[s.tokens[-1]] for s in sequences], device=device),
                attention_mask=kv.attention_mask(device),
                position_ids=torch.tensor(positions, device=device).unsqueeze(1),
                cache=kv,
                use_cache=True,
                logits_to_keep=1,
            )
            kv.write_back()
            logits: torch.Tensor = output.logits[:, -1]
            return logits

    async def _run(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._limiter)
