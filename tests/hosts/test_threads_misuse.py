"""A cache in a thread of its own across a fork, under signals and Ctrl-C: an error, never a hang."""

from __future__ import annotations

import signal
import subprocess
import sys

PRELUDE = """
import os, signal, sys, threading, time, warnings
from banyankv import CacheConfig, LeaseInUse, ModelSpec, PagedSpec, WrongHost, threads

MODEL = ModelSpec(name="m", page_size=1, components=(PagedSpec(name="full"),))
CONFIG = CacheConfig(model=MODEL, l1={"full": 9}, dispatch=sys.argv[1], room_timeout=99)
warnings.simplefilter("ignore", ResourceWarning)
"""

FORK = """
with threads.open_cache(CONFIG) as cache:
    lease = cache.acquire([1] * 9)
    lease.extend(4)
    holder = cache.acquire([2])
    holder.extend(5)
    waiting = cache.submit(holder.extend, 3)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for use in (
            lambda: cache.acquire([1]),
            lambda: cache.submit(cache.acquire, [1]),
            lambda: cache.acquire_batch([[1]]),
            lambda: cache.extend_batch([lease], 1),
            cache.stats,
            lambda: lease.extend(1),
            lambda: lease.pages("full"),
            lambda: lease.append([1]),
            waiting.poll,
            waiting.result,
        ):
            try:
                use()
            except WrongHost as error:
                assert "forked" in str(error), error
            else:
                os._exit(3)
        waiting.cancel()
        lease.release()
        cache.release_batch([holder])
        del lease, holder, waiting
        with threads.open_cache(CONFIG) as own:
            own.acquire([1]).release()
            own.check()
if child == 0:
    os._exit(7)  # the child has left the parent's block without hanging
"""

FORK_PARENT = """
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    lease.release()
    waiting.result(20)
    assert holder.extent == 8
    holder.release()
    cache.check()
    print("ok")
"""

SIGNAL = """
answers = []

def handler(number, frame):
    try:
        lease.extend(1)
    except LeaseInUse as error:
        answers.append(error)
    answers.append(cache.stats().waiting)
    holder.release()

signal.signal(signal.SIGALRM, handler)
with threads.open_cache(CONFIG) as cache:
    holder, lease = cache.acquire([1]), cache.acquire([2])
    holder.extend(9)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    lease.extend(5)
    lease.release()
    cache.check()
assert [type(each) for each in answers] == [LeaseInUse, int], answers
print("ok")
"""

STORM = """
def handler(number, frame):
    with cache.acquire([3] * 2) as other:
        other.extend(1, deadline=0)
    if time.monotonic() < end:
        signal.setitimer(signal.ITIMER_REAL, 0.002)

end = time.monotonic() + 2
with threads.open_cache(CONFIG) as cache:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    while time.monotonic() < end:
        with cache.acquire([1] * 5) as lease:
            lease.extend(2, deadline=0)
            cache.submit(lease.trim, 1).result()
    time.sleep(0.1)
    assert cache.stats().leases == 0
    cache.check()
print("ok")
"""

INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)
with threads.open_cache(CONFIG) as cache:
    holder = cache.acquire([1])
    holder.extend(9)
    interrupts = 0
    while interrupts < 60:
        try:
            # each line asks for one interrupt: it ends the loop, wherever it hits
            print(interrupts, flush=True)
            while True:
                with cache.acquire([2, 3]) as lease:
                    if interrupts % 2:
                        lease.extend(5)
                    cache.acquire_batch([[4], [5]])[0].release()
        except KeyboardInterrupt:
            interrupts += 1
            lease = None
    holder.release()
    end = time.monotonic() + 20
    while cache.stats().leases:
        assert time.monotonic() < end, cache.stats()
    cache.check()
"""


WAITING = """
def handler(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
with threads.open_cache(CONFIG) as cache:
    holder, lease = cache.acquire([1]), cache.acquire([2])
    holder.extend(9)
    for wait in (
        lambda: lease.extend(5),
        lambda: cache.extend_batch([lease, holder], 1),
        lambda: cache.submit(lease.extend, 5).wait_out(),
    ):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            wait()
        except KeyboardInterrupt:
            pass
        else:
            sys.exit(3)
        assert cache.stats().waiting == 0
        assert (holder.extent, lease.extent) == (9, 0)
    holder.release()
    lease.extend(5)
    lease.release()
    cache.check()
print("ok")
"""


def program(dispatch: str, *parts: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + "".join(parts), dispatch],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def interrupted(dispatch: str, text: str, count: int) -> None:
    """Run a program, and send SIGINT for each line that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + text, dispatch], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line.strip())
            child.send_signal(signal.SIGINT)
    assert child.returncode == 0, lines[-3:]
    assert lines == [str(n) for n in range(count)]


def test_a_forked_child_is_refused_and_the_parent_goes_on(dispatch):
    parent = "\n".join("    " + line for line in FORK_PARENT.strip("\n").splitlines())
    text = FORK.replace(
        "if child == 0:\n    os._exit(7)",
        "    if child:\n" + parent + "\nif child == 0:\n    os._exit(7)",
    )
    assert program(dispatch, text) == "ok\n"


def test_a_signals_handler_may_call_in_the_middle_of_a_call(dispatch):
    assert program(dispatch, SIGNAL) == "ok\n"


def test_calls_of_handlers_and_calls_that_they_interrupt_never_wait_for_each_other(dispatch):
    assert program(dispatch, STORM) == "ok\n"


def test_interrupts_leave_nothing_behind(dispatch):
    interrupted(dispatch, INTERRUPTED, 60)


def test_an_interrupted_call_has_been_given_up_when_the_interrupt_is_raised(dispatch):
    assert program(dispatch, WAITING) == "ok\n"
