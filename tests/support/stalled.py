"""A test that waits in vain fails, and a run that stands still says which tests do, and ends.

The time limit of a test is an exception in whatever runs at that moment: a task that nobody looks
at may take it, and the end of the test may wait in vain, too. So it comes again. If all that fails,
or a process is gone that was to run the rest, the run would wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_AGAIN = 20.0  # seconds from one exception to the next
_TO_TELL = 5.0  # seconds in which a worker writes where it is


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    """Let the time limit of a test be told again and again until the test has ended."""
    result = yield
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if left:
        signal.setitimer(signal.ITIMER_REAL, left, _AGAIN)
    return result


class Stalled:
    """A plugin that calls `end` with the tests under way once no test has begun or ended for long.

    It belongs into the process that hands the tests out.
    """

    def __init__(self, patience: float, end: Callable[[list[str]], None]) -> None:
        self._patience = patience
        self._end = end
        self._under_way: list[str] = []
        self._last: float | None = None
        self._over = threading.Event()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test has begun; with the first begins the watch."""
        self._under_way.append(nodeid)
        began, self._last = self._last, time.monotonic()
        if began is None:
            threading.Thread(target=self._watch, name="stalled", daemon=True).start()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has ended."""
        with contextlib.suppress(ValueError):
            self._under_way.remove(nodeid)
        self._last = time.monotonic()

    def pytest_unconfigure(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(left := self._left()):
            if left == 0:
                self._end(list(self._under_way))
                return

    def _left(self) -> float:
        assert self._last is not None
        return max(0.0, self._last + self._patience - time.monotonic())


def end_run(under_way: list[str]) -> None:
    """Say which tests are under way, have each process write where it is, and end all."""
    print(f"\nno test has begun or ended for long; under way: {under_way or 'none'}", flush=True)
    started = psutil.Process().children(recursive=True)
    for process in started:
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(("python", "pytest")):
                process.send_signal(signal.SIGABRT)  # pytest's faulthandler writes the stacks
    _, left = psutil.wait_procs(started, timeout=_TO_TELL)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    sys.stdout.flush()
    os._exit(1)
