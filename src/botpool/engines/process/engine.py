"""The engine that needs nothing installed: a slot is a folder and a group of processes."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from botpool.engines.base import (
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    Traits,
)
from botpool.engines.process.folder import Folder
from botpool.engines.process.spawner import Spawner
from botpool.engines.process.tree import alive, kill, send_signal
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.tasks.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import psutil

    from botpool.engines.base import ContainerSpec, PullProgress

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LOOK_SECONDS = 0.02
_KILL_SECONDS = 5.0
_LEFTOVER_SECONDS = 600.0


class ProcessEngine:
    """Runs `command` for every bot, in folders below `folder`. Bots outlive it."""

    name = "process"
    traits = Traits(describes=True)

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder = folder
        self._command = tuple(command)
        self._spawner = Spawner()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._host = _host_name(folder)

    def hosts(self) -> Sequence[str]:
        """The machine that the folder is on."""
        return (self._host,)

    async def open_hosts(self) -> Sequence[str]:
        """The same."""
        return self.hosts()

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Do nothing: processes have no image."""
        return False

    async def has_image(self, host: str, image: str) -> bool:
        """Return true: no image is needed."""
        return True

    async def create(self, spec: ContainerSpec) -> str:
        """Create an empty folder."""
        await _blocking(self._at(Container(spec.host, spec.name)).create, spec)
        return spec.name

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Start the command in the folder, without botpool's own environment."""
        folder = self._at(container)
        return str(await _blocking(folder.start, self._spawner, self._command, environment))

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """Look at the supervisor, and at processes that the bot left behind."""
        return await _blocking(self._at(container).observe)

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Send SIGTERM to every process of the container, and after the grace SIGKILL."""
        folder = self._at(container)
        loop = asyncio.get_running_loop()
        forced_at = loop.time() + grace_seconds
        given_up_at = forced_at + _KILL_SECONDS
        asked: set[tuple[psutil.Process, bool]] = set()
        while found := await _blocking(folder.processes):
            if loop.time() > given_up_at:
                numbers = ", ".join(str(process.pid) for process in found)
                raise EngineUnavailable(f"{container.ref} doesn't end: processes {numbers}.")
            if loop.time() >= forced_at:
                leader = None
                with suppress(EngineRefused):  # its record is lost
                    leader = await _blocking(folder.leader)
                kill(found, leader)
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            # What the bot leaves behind is asked once more: a process that was asked between its
            # fork and its program did not hear it.
            ended = await _blocking(folder.exit_code) is not None
            send_signal([each for each in found if (each, ended) not in asked], signal.SIGTERM)
            asked.update((each, ended) for each in found)
            # When one has ended, look for others that were forked at the last moment.
            await asyncio.sleep(_LOOK_SECONDS)
            while len(found) > 1 and loop.time() < forced_at and all(map(alive, found)):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove the folder."""
        await _blocking(self._at(container).remove)

    async def describe(self, container: Container, text: str) -> None:
        """Write the line into the folder."""
        await _blocking(self._at(container).describe, text)

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The end of the bot's output."""
        return await _blocking(self._at(container).last_lines, lines)

    async def close(self) -> None:
        """End the spawner. Bots run on."""
        await _blocking(self._spawner.close)

    def _at(self, container: Container) -> Folder:
        if container.host != self._host:
            raise EngineUnavailable(f"{container.ref} is on {container.host}, not on this machine.")
        return Folder(self._folder / container.ref)

    def _listed(self) -> Iterator[ListedContainer]:
        for path in self._folder.glob(".pool-*"):
            # A process was killed while it created or removed this; it is never used again.
            with suppress(OSError, EngineRefused):
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    Folder(path).delete()
        for path in sorted(self._folder.glob("[!.]*")):
            if (found := self._look(Folder(path))) is not None:
                yield found

    def _look(self, folder: Folder) -> ListedContainer | None:
        """A container of the list. One whose files can't be read has failed."""
        slot_id, slot_name = None, folder.path.name
        try:
            spec = folder.spec()
            if spec is None:
                return None  # it has just been removed
            slot_id, slot_name = spec["slot_id"], spec["slot_name"]
            folder.bound_output()
            observation = folder.observe()
        except EngineRefused as error:
            observation = Observation(state=ContainerState.FAILED, detail=str(error))
        return ListedContainer(
            container=Container(self._host, folder.path.name),
            slot_id=slot_id,
            slot_name=slot_name,
            observation=observation,
        )

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every folder."""
        if host != self._host:
            raise EngineUnavailable(f"{host} is not this machine.")
        return await _blocking(lambda: [*self._listed()])


async def _blocking(
    what: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Run a blocking call in a thread. A thread can't be cancelled, so it is waited for.

    So no other call starts on a container while a thread still works on it.
    """
    try:
        return await finish(asyncio.to_thread(what, *args, **kwargs))
    except OSError as error:
        raise EngineUnavailable(f"This machine failed: {error}") from error


def _host_name(folder: Path) -> str:
    """The name of this folder's machine. The folder keeps it, even if the machine is renamed."""
    path = folder / ".host"
    if not path.exists():
        name = f"local-{secrets.token_hex(3)}"
        new = folder / f".host-{name}"
        new.write_text(name, "utf-8")
        with suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    return path.read_text("utf-8")
