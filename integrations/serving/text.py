"""Text and tokens of a tiny model: one token a byte, and answers in printable ASCII.

A model of random numbers would answer with any byte. That is no text, a client could not send it back
in its next turn as the same tokens, and nothing of it could be reused; so the next token is chosen
among the printable ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from ...errors import ConfigError

VOCABULARY = 256
_FIRST, _LAST = 32, 126
_ASSISTANT = "<assistant>"


def require_bytes(model: PreTrainedModel) -> None:
    """Refuse by `ConfigError` a model whose tokens are not bytes."""
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    if size != VOCABULARY:
        raise ConfigError(
            f"the model has {size:,} tokens and this server speaks bytes, {VOCABULARY} tokens: serve a "
            "model of bytes or a tiny family such as lara-mini; with a tokenizer, embed the cache "
            "(docs/embedding.md)"
        )


def encode(text: str) -> list[int]:
    """Return the bytes of a text."""
    return list(text.encode())


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens that the model chose."""
    return bytes(tokens).decode()


def render(messages: Iterable[tuple[str, str]]) -> tuple[str, int]:
    """Join (role, content) pairs to a prompt; also return the bytes of the first message.

    A conversation's next prompt begins with the one before it and its answer: it can be reused.
    """
    lines = [f"<{role}>{content}\n" for role, content in messages]
    return "".join(lines) + _ASSISTANT, len(lines[0].encode())


def choose(logits: torch.Tensor, temperature: float, dice: torch.Generator) -> int:
    """Choose the next token: the likeliest at temperature 0, else drawn with `dice`."""
    printable = logits[_FIRST : _LAST + 1]
    if not temperature:
        return _FIRST + int(printable.argmax())
    # None above 0: what is divided by next to nothing would be infinite, and its share no number.
    behind = printable.double() - printable.max()
    shares = torch.softmax(behind / temperature, dim=0).cpu()
    return _FIRST + int(torch.multinomial(shares, 1, generator=dice))
