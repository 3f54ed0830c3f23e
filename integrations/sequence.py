"""Sequence: one request on a model, as a scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from ..errors import ConfigError
from .layout import MAMBA
from .marks import marks

if TYPE_CHECKING:
    from ..runtime.lease import Lease
    from .leased_cache import LeasedCache
    from .transformers import TransformersEngine


class Sequence:
    """One request: its lease, the model's cache object, and how far it has come.

    Made by `TransformersEngine.start`; use it as `async with`, or `release` it. Belongs to one task
    at a time. First `prefill` until it returns True, then for each token `push` and the engine's
    `step`; `logits` are those of the last token computed. `finish` at the end of the turn.

    Cancellation is safe anywhere: what was published stays, the rest is given back by `release`.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        lease: Lease,
        kv: LeasedCache,
        tokens: list[int],
        keep: Iterable[int],
    ) -> None:
        self._engine = engine
        self.lease = lease
        """The lease: `length` tokens were reused, `hit` says from where."""
        self.kv = kv
        """The model's cache object."""
        self.tokens = tokens
        """The prompt, and what was pushed behind it."""
        self.prompt = len(tokens)
        """Tokens of the prompt."""
        self.position = lease.length
        """Tokens that the cache object has seen."""
        self._before = lease.length
        self.logits: torch.Tensor | None = None
        """Logits [vocabulary] of the token at `position - 1`; None until the prompt is through."""
        self._marks = marks(
            length=self.prompt,
            page=engine.page_size,
            reused=lease.length,
            fork=lease.full_match,
            spacing=engine.spacing,
            keep=keep,
        )
        # The state at the last page boundary that decoding has passed: nobody knows beforehand where
        # a turn will end.
        self._turn_end = 0
        self._turn_state: list[torch.Tensor] = []

    def __repr__(self) -> str:
        return f"<Sequence at {self.position} of {len(self.tokens)} [{self.lease!r}]>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()

    @property
    def ready(self) -> bool:
        """Whether the prompt is through, so that tokens may be pushed."""
        return self.position >= self.prompt

    def argmax(self) -> int:
        """Return the likeliest next token: greedy decoding."""
        if self.logits is None:
            raise ConfigError("no logits yet: prefill until it returns True")
        return int(self.logits.argmax())

    async def prefill(self, limit: int | None = None, *, deadline: float | None = None) -> bool:
        """Compute the next chunk of the prompt; return whether the prompt is through.

        At most `limit` tokens (the engine's `chunk` by default), fewer where a mark cuts a model with
        states: there its state is kept. Behind a mark everything so far is published. Waits for room
        up to `deadline` seconds; raises NoCapacity, and may be called again then.
        """
        if self.ready:
            return True
        end = self._next_cut(self._engine.chunk if limit is None else limit)
        if self.position < self.lease.extent:
            # Room that a call before took and did not come to use. To extend again would say that
            # all of it has been computed, and windows would let go what is still to come.
            end = min(end, self.lease.extent)
        else:
            await self.lease.extend(end - self.position, deadline=deadline)
        await self._engine.compute(self, end)
        return self.ready

    def _next_cut(self, limit: int) -> int:
        if limit < 1:
            raise ConfigError(f"a chunk has at least 1 token, not {limit}")
        cuts: Iterable[int] = ()
        if self._engine.layout.states:
            cuts = (mark for mark in self._marks if mark > self.position)
        return min(self.position + limit, self.prompt, *cuts)

    async def push(self, token: int, *, deadline: float | None = None) -> None:
        """Take room for one more token and put it behind the others; `step` computes it.

        Raises NoCapacity where there is no room within `deadline` seconds, ConfigError beyond
        `layout.longest`; nothing has changed then.
        """
        if not self.ready:
            raise ConfigError("compute the prompt first: prefill until it returns True")
        if self.position < len(self.tokens):
            raise ConfigError("compute what was pushed before pushing more")
        self._engine.check_length(len(self.tokens) + 1)
        if self.position == self.lease.extent:
            # A page at once: it takes no more than its first token would, and asks less often.
            page = self._engine.page_size
            await self.lease.extend(page - self.position % page, deadline=deadline)
        self.lease.append([token])
        self.tokens.append(token)

    def note(self, end: int, logits: torch.Tensor) -> None:
        """Take down that the tokens up to `end` have been computed: for the engine, before `keep`."""
        answering = self.position >= self.prompt
        self._before, self.position = self.position, end
        if end >= self.prompt:
            self.logits = logits
        if answering and end % self._engine.page_size == 0 and self._engine.layout.states:
            self._turn_end, self._turn_state = end, self.kv.save_state()

    async def keep(self) -> None:
        """Let others come back to the mark that the last forward reached or passed: for the engine."""
        at, spacing = self.position, self._engine.spacing
        marked = any(self._before < mark <= at for mark in self._marks)
        if marked or (at > self.prompt and spacing and at % spacing == 0):
            if self._engine.layout.states:
                await self.keep_state(at)
            await self.lease.publish(at)

    async def finish(self) -> None:
        """End the turn: publish all whole pages, with the state at the last page boundary.

        The sequence cannot go on after it; release it.
        """
        if self._turn_end > self.lease.published:
            self.kv.load_state(self._turn_state)
            await self.keep_state(self._turn_end)
        await self.lease.publish(min(self.position, self.lease.extent))

    async def keep_state(self, at: int) -> None:
        """Keep the state in the slot as that at `at`; room behind it is given back."""
        if self.lease.extent > at:
            await self.lease.trim(self.lease.extent - at)
        await self.lease.snapshot(MAMBA, at=at)

    async def release(self) -> None:
        """Give back everything that the request holds; idempotent."""
        await self.lease.release()
