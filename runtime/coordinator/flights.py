"""Requests in flight: those that are answered by a later operation than the one in which they came.

    acquire   planning --> searching, copying or in the queue for room --> planning ... --> answered
    extend                                        in the queue for room --> answered

Each is one object that owns its states and moves them by its own methods. The cache actor keeps a table
of them by their reply tokens, so that it finds one again when its asker leaves.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors import ReplyToken
from ...errors import BanyanError


class Flight(msgspec.Struct, eq=False, kw_only=True):
    """A request that waits: `token` answers it, once.

    Each kind has a `leave` of its own, which gives back everything when the asker has left.
    """

    token: ReplyToken | None = None
    _table: dict[ReplyToken, Any] | None = None

    def wait_with(self, table: dict[ReplyToken, Any], token: ReplyToken) -> None:
        """Be answered later, by this token; the table knows of it until then."""
        self._table, self.token = table, token
        table[token] = self

    def answer(self, value: Any) -> None:
        """Give the answer; the flight is over."""
        self._close().reply(value)

    def refuse(self, error: BanyanError) -> None:
        """Refuse with an error; the flight is over."""
        self._close().fail(error)

    def _close(self) -> ReplyToken:
        token, table = self.token, self._table
        if token is None or table is None:
            raise RuntimeError("a request that was answered at once cannot be answered again")
        del table[token]
        return token
