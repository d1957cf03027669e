"""What process 1 of a container has to do: pass signals on, and take note of orphans that ended."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_first_process() -> None:
    """If this is process 1, go on as a child of it, which ends with the child and as it did.

    Bots of the `process` engine outlive who started them, so they are left to process 1. Without
    somebody who waits for them there, each would stay as a zombie for ever.
    """
    if os.getpid() != 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        # A terminal's Ctrl-C is for the group of process 1, which passes it on: so it comes once.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
