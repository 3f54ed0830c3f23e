"""Messages name the type of their answer, which costs nothing when one is made or written down."""

from __future__ import annotations

import gc

import msgspec
from banyankv.actors import Message, Reply


class Doubled(Reply, frozen=True):
    value: int


class Double(Message[Doubled], frozen=True):
    value: int
    by: int = 2


def test_a_message_is_a_plain_struct():
    message = Double(3)
    assert not hasattr(message, "__dict__")
    assert not gc.is_tracked(message)
    assert not gc.is_tracked(Doubled(6))
    assert Double.__struct_config__.frozen
    assert msgspec.json.decode(msgspec.json.encode(message), type=Double) == message
