"""What runs in a container, and Docker's restart policy around it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    Bot = Callable[["RunningContainer"], Awaitable[int]]
    """Returns an exit code; what it raises is a crash."""

SAMPLE_BOT = (sys.executable, "-m", "botpool.bot.sample")

_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 60.0
_RAN_WELL_SECONDS = 10.0
_CHUNK_BYTES = 65_536
_KILLED = 137
_INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")


class ContainerState(StrEnum):
    """What Docker says of a container. One that was stopped is removed by Coolify."""

    CREATED = "created"
    RUNNING = "running"
    RESTARTING = "restarting"
    PAUSED = "paused"
    DEAD = "dead"
    EXITED = "exited"


ALIVE = frozenset({ContainerState.CREATED, ContainerState.RUNNING, ContainerState.PAUSED})
"""A process is in it, or will be at once."""


class RunningContainer:
    """A container from its start to its stop, through all its restarts.

    `become` is called to change its state.
    """

    def __init__(
        self,
        *,
        name: str,
        application_uuid: str,
        server_uuid: str,
        image: str,
        environment: Mapping[str, str],
        become: Callable[[RunningContainer, ContainerState], None],
    ) -> None:
        self.name = name
        self.application_uuid = application_uuid
        self.server_uuid = server_uuid
        self.image = image
        self.environment = environment
        self.asked_to_stop = asyncio.Event()
        self.grace_seconds = 0.0
        """From when it is asked to stop until it is killed."""
        self.state = ContainerState.RUNNING
        self.health = "unknown"
        """What a health check says, `unknown` without one."""
        self.restart_count = 0
        self.exit_codes: list[int] = []
        """Of the runs that are over."""
        self.output: list[tuple[float, str]] = []
        """Its log: when, and which line."""
        self._become = become
        self._gone = asyncio.Event()

    def say(self, line: str) -> None:
        """Write a line to its log."""
        self.output.append((asyncio.get_running_loop().time(), line))

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and return when it is gone."""
        self.grace_seconds = grace_seconds
        self.asked_to_stop.set()
        await self._gone.wait()

    async def live(self, containers: Containers) -> None:
        """Run, and run again, until it is asked to stop: the policy `unless-stopped`."""
        clock = asyncio.get_running_loop().time
        delay = _BACK_OFF_SECONDS
        try:
            while True:
                began = clock()
                self.exit_codes.append(await containers.run(self))
                if self.asked_to_stop.is_set():
                    return
                if clock() - began >= _RAN_WELL_SECONDS:
                    delay = _BACK_OFF_SECONDS
                self._become(self, ContainerState.RESTARTING)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self.asked_to_stop.wait()
                    return
                delay = min(delay * 2, _LONGEST_BACK_OFF_SECONDS)
                self.restart_count += 1
                self._become(self, ContainerState.RUNNING)
        finally:
            self._become(self, ContainerState.EXITED)
            self._gone.set()


class Containers(Protocol):
    """What is inside of containers."""

    async def run(self, container: RunningContainer) -> int:
        """Run once, and return the exit code.

        From `asked_to_stop` on, what runs has its grace to end; then it is killed. Nothing is left
        of it when this returns, nor when it is cancelled.
        """
        ...


class TaskContainers:
    """Containers in which a coroutine runs."""

    def __init__(self, bot: Bot) -> None:
        self._bot = bot

    async def run(self, container: RunningContainer) -> int:
        """Call the bot; to kill it is to cancel it."""
        task = asyncio.ensure_future(self._bot(container))
        try:
            await _end(task, container)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return _KILLED
        error = task.exception()
        if error is not None:
            container.say(f"{type(error).__name__}: {error}")
            return 1
        return task.result()


async def wait_for_stop(container: RunningContainer) -> int:
    """A bot that does nothing until it is stopped."""
    await container.asked_to_stop.wait()
    return 0


class ProcessContainers:
    """Containers in which a process runs, with what it writes as their logs."""

    def __init__(self, command: Sequence[str] = SAMPLE_BOT) -> None:
        self._command = tuple(command)

    async def run(self, container: RunningContainer) -> int:
        """Start the command; to kill it is to kill all its process group."""
        own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**own, **container.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        over = asyncio.ensure_future(_log(process, container))
        try:
            await _end(over, container, process.terminate)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await over
        code = await process.wait()
        return code if code >= 0 else 128 - code


async def _log(process: asyncio.subprocess.Process, container: RunningContainer) -> None:
    """Read until the process closes its output, and wait for it."""
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            container.say(line.decode(errors="replace"))
    if rest:
        container.say(rest.decode(errors="replace"))
    await process.wait()


async def _end(
    run: asyncio.Future[int] | asyncio.Future[None],
    container: RunningContainer,
    ask: Callable[[], None] | None = None,
) -> None:
    """Wait until a run ends by itself, or its grace is over."""
    asked = asyncio.ensure_future(container.asked_to_stop.wait())
    try:
        await asyncio.wait([run, asked], return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    if not run.done():
        if ask is not None:
            with suppress(ProcessLookupError):
                ask()
        await asyncio.wait([run], timeout=container.grace_seconds)
