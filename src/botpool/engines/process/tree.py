"""Find the processes of a container, and no others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable
    from signal import Signals

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STAT_START = 19  # counted from the field after the name


def start_mark(pid: int) -> str | None:
    """A mark that no other process with the same number has, before or after.

    `None` if there is no such process. On Linux it doesn't depend on the clock.
    """
    try:
        if _BOOT.exists():
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            return f"{_BOOT.read_text('utf-8').strip()}/{fields[_STAT_START]}"
        return str(psutil.Process(pid).create_time())
    except (OSError, psutil.Error):
        return None


def alive(process: psutil.Process) -> bool:
    """Whether it still runs. A zombie doesn't."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def with_descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes and all their descendants, if they are alive."""
    found: dict[psutil.Process, None] = {}
    for process in processes:
        if process not in found:
            found[process] = None
            with suppress(psutil.NoSuchProcess):
                found.update(dict.fromkeys(process.children(recursive=True)))
    return [process for process in found if alive(process)]


def find_marked(session: int | None, variable: str, value: str) -> list[psutil.Process]:
    """Every process of a session, and every one whose environment has this value.

    The session finds processes that changed their environment; the environment finds processes
    that left the session.
    """
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            ours = session is not None and os.getsid(pid) == session
            if ours or process.environ().get(variable) == value:
                found.append(process)
    return found


def send_signal(processes: Iterable[psutil.Process], number: Signals) -> None:
    """Send a signal to the processes that still run, and not to others that reuse their numbers.

    Those that belong to another user get none.
    """
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def kill(processes: Iterable[psutil.Process], leader: psutil.Process | None) -> None:
    """Kill processes. Their leader is left to end by itself, because it alone has them all.

    It may have been stopped, or still wait for its order.
    """
    send_signal([process for process in processes if process != leader], SIGKILL)
    if leader is not None:
        send_signal([leader], SIGCONT)
        send_signal([leader], SIGTERM)
