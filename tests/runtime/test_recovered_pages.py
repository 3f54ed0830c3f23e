"""Pages that live leases name at a recovery: shared ones once, private ones of one lease only."""

from __future__ import annotations

import numpy as np
import pytest
from banyankv.errors import IntegrityError
from banyankv.runtime.coordinator.recovery import _each_once


def packed(*ids: int) -> bytes:
    return np.array(ids, "<i4").tobytes()


def test_shared_pages_come_once_and_all_in_order():
    assert _each_once("full", packed(7, 2, 7, 2), packed(5, 0)) == packed(0, 2, 5, 7)
    assert _each_once("full", b"", b"") == b""
    assert _each_once("full", b"", packed(3)) == packed(3)


@pytest.mark.parametrize(
    ("shared", "private"), [((), (4, 4)), ((4,), (4,)), ((1, 4), (2, 9, 4))], ids=str
)
def test_a_private_page_that_two_claim_is_an_error(shared, private):
    with pytest.raises(IntegrityError, match="same private page"):
        _each_once("full", packed(*shared), packed(*private))


def test_a_page_that_cannot_be_is_an_error():
    with pytest.raises(IntegrityError, match="cannot be"):
        _each_once("full", packed(3, -1), packed(0))
