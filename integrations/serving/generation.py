"""Generation: one request, from its client's side and from the scheduler's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
import trio

from ...errors import BanyanError
from ...runtime.messages import HitTokens
from ...spec import Namespace
from .text import choose

if TYPE_CHECKING:
    from ..sequence import Sequence


class Generation:
    """One request: its tokens so far, and the channel on which its client waits for them.

    The client iterates over it, token by token, which raises the error that ended the request if
    one did. Everything else belongs to the scheduler.
    """

    def __init__(
        self,
        prompt: list[int],
        length: int,
        *,
        fork: int = 0,
        namespace: Namespace | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.tokens = list(prompt)
        """The prompt and the answer so far: what a pre-empted request begins with again."""
        self.prompt, self.length = len(prompt), length
        self.fork = fork
        self.namespace = namespace
        self.hit: HitTokens | None = None
        """Prompt tokens reused by tier, by the request's first lease; None before it."""
        self.sequence: Sequence | None = None
        """What computes it, while it runs."""
        self.gone = False
        """Whether nobody waits for the answer any more."""
        self.scope = trio.CancelScope()
        """Around what may take long; cancelled when the client goes."""
        self.submitted = trio.current_time()
        self.passed_over = 0
        self._temperature = temperature
        self._dice = torch.Generator()
        if seed is None:
            self._dice.seed()
        else:
            self._dice.manual_seed(seed)
        # Room for the whole answer: a client that reads slowly delays nobody.
        self._send, self._receive = trio.open_memory_channel[int](length)
        self._error: BanyanError | None = None

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt

    def emit(self, logits: torch.Tensor) -> None:
        """Choose the next token and hand it to the client."""
        self.tokens.append(choose(logits, self._temperature, self._dice))
        self._send.send_nowait(self.tokens[-1])

    def close(self, error: BanyanError | None = None) -> None:
        """Tell the client that this was all, or what went wrong."""
        self._error = error
        self._send.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise self._error or StopAsyncIteration from None
