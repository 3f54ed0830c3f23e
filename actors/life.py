"""One life of an actor: from its factory to its last step, in a trio task of its own."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Any

import trio

from . import dispatch
from .actor import Actor, Coordinator
from .cell import box
from .gate import DOWN, QUEUED, STOPPED, WATCHED
from .ref import Ref

_BREATH = 0.001
"""Seconds that an actor's task handles messages before it lets others run."""


async def live(
    ref: Ref[Any],
    factory: Callable[[], Actor],
    ready: Callable[[], None],
    crashed: Callable[[], None],
) -> None:
    """Live one life; `ref.crash` is what ended it, or None for an orderly end.

    Messages are handled until the actor crashes, stops itself or is stopped. Cancellation ends the
    life too: the operation in hand is cancelled, its asker is answered. Whoever waits for a deferred
    reply is refused or kept for the next life, and a crash told by `crashed`, before the child tasks
    are waited for.
    """
    ref.crash = ref.refused = None
    ref.stopping = False
    try:
        async with trio.open_nursery() as nursery:
            ref.nursery = nursery
            ref.context = contextvars.copy_context()
            try:
                await _begin(ref, factory)
                if ref.crash is None:
                    ready()
                    await _serve(ref)
            finally:
                ref.gate |= DOWN
                _refuse(ref)
            if ref.crash is not None:
                crashed()
            nursery.cancel_scope.cancel()
    finally:
        _end(ref)


async def _begin(ref: Ref[Any], factory: Callable[[], Actor]) -> None:
    try:
        actor = factory()
        ref.bind(actor, ref)
    except Exception as error:  # noqa: BLE001 - an actor that cannot be made has crashed
        ref.crash = box(ref.path, error)
        return
    ref.run_hook(actor.on_start, None)
    if ref.crash is not None:
        return
    if isinstance(actor, Coordinator):
        await dispatch.prepare(ref)
    if ref.crash is None:
        ref.gate &= ~DOWN
        ref.hand_over()


def _refuse(ref: Ref[Any]) -> None:
    gone = ref.crash
    if ref.actor is not None and ref.actor.hands_over and not ref.gate & STOPPED:
        return
    ref.close_tokens(lambda: gone if gone is not None else dispatch.stopped(ref))


def _end(ref: Ref[Any]) -> None:
    cause = ref.crash
    actor = ref.actor
    if actor is not None:
        ref.run_hook(lambda: actor.on_stop(cause), None)
    ref.tell_monitors(ref.crash)
    ref.unbind()


async def _serve(ref: Ref[Any]) -> None:
    breath = time.monotonic()
    while True:
        if ref.parked is not None:
            await dispatch.finish(ref)
        elif ref.crash is not None or (ref.stopping and not ref.gate & STOPPED):
            return
        elif ref.gate & QUEUED and (not ref.gate & DOWN or ref.gate & STOPPED):
            if ref.gate & WATCHED and not ref.system.watch.is_due(ref):
                with trio.CancelScope(deadline=ref.system.watch.when_due(ref)):
                    await sleep(ref)
                continue
            dispatch.handle_next(ref)
            now = time.monotonic()
            if now - breath > _BREATH:
                await trio.lowlevel.checkpoint()
                breath = time.monotonic()
        elif ref.stopping:
            return
        else:
            await sleep(ref)
            breath = time.monotonic()


async def sleep(ref: Ref[Any]) -> None:
    """Wait until something wakes the actor's task."""

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        ref.sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    ref.sleeper = trio.lowlevel.current_task()
    await trio.lowlevel.wait_task_rescheduled(abort)
