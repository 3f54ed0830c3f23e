"""Hops are added up when they are wanted."""

from __future__ import annotations

from banyankv.actors.observer import Hop, Observer
from banyankv.telemetry import Telemetry


def hop(message: str, outcome: str = "ok") -> Hop:
    return Hop(
        sender="/cache",
        receiver="/cache/tree",
        message=message,
        via="direct",
        waited_ns=10,
        handled_ns=200,
        outcome=outcome,
    )


def test_hops_are_off_unless_asked_for():
    assert Telemetry().hops is False
    assert Telemetry(hops=True).hops is True


def test_hops_add_up_by_receiver_and_message():
    telemetry = Telemetry(hops=True)
    observer: Observer = telemetry
    for each in (hop("Walk"), hop("Walk", "refused"), hop("Walk", "crashed"), hop("Insert")):
        observer.hop(each)
    totals = telemetry.hop_totals()
    assert set(totals) == {("/cache/tree", "Walk"), ("/cache/tree", "Insert")}
    walk = totals["/cache/tree", "Walk"]
    assert (walk.count, walk.refused, walk.crashed) == (3, 1, 1)
    assert (walk.waited_ns, walk.handled_ns) == (30, 600)
