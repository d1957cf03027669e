"""The folder of one container of the `process` engine, and the processes that run for it.

Everything about a container is in its folder, so a botpool that is started again finds it all:

    container.json   what it was created with
    work/            where the bot runs, and its home
    run.json         its supervisor, and the name of its TMPDIR
    started          exists once the bot itself was started
    exit             its exit code
    output           what it wrote
    description      what its slot is doing

Only `TMPDIR` is elsewhere, because programs have sockets in it, and the path of a socket may have
about 100 characters. The supervisor makes and deletes it. If the supervisor was killed, it is
deleted with the folder.

A supervisor starts the bot when `run.json` is written. So a botpool that is killed while it starts
a bot has either recorded the supervisor, or started nothing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from botpool.engines.base import REFERENCE, ContainerState, Observation
from botpool.engines.process.files import open_file, open_folder, read_whole
from botpool.engines.process.supervisor import delete_folder, delete_temporary, write_whole
from botpool.engines.process.tree import alive, find_marked, start_mark, with_descendants
from botpool.errors import ContainerMissing, EngineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from botpool.engines.base import ContainerSpec
    from botpool.engines.process.spawner import Spawner

_LONGEST_OUTPUT = 20_000_000
_READ_OUTPUT = 1_000_000
TEMPORARY = Path("/tmp")  # noqa: S108 - nobody can guess the names in it
"""Where each bot has its TMPDIR."""
_TEMPORARY_NAME = re.compile(r"botpool-slot-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Run:
    """The last start: its supervisor's number and start mark, and the name of its TMPDIR."""

    pid: int
    start: str
    temporary: str | None


class Folder:
    """One container. Every call blocks.

    Raises `EngineRefused` if a file can't be read or makes no sense.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, spec: ContainerSpec) -> None:
        """Create the folder, empty. Raises `EngineRefused` while something runs in it."""
        self.remove()
        # Names that begin with a dot are not listed, so a half-made container is not either.
        half = self.path.with_name(f".{self.path.name}")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700)
        (half / "work").mkdir()
        made = {
            "slot_id": spec.slot_id,
            "slot_name": spec.slot_name,
            "environment": dict(spec.environment),
        }
        with open_folder(half) as folder:
            write_whole(folder, "container.json", json.dumps(made).encode())
        half.rename(self.path)
        with open_folder(self.path.parent) as parent:
            os.fsync(parent)

    def remove(self) -> None:
        """Remove the folder, if there is one. Raises `EngineRefused` while something runs in it."""
        if self.processes():
            raise EngineRefused(f"{self.path.name} is running.")
        if self.exists():
            # Renamed first: a folder that is half removed must not look like a container.
            gone = Folder(self.path.with_name(f".{self.path.name}-{secrets.token_hex(4)}"))
            self.path.rename(gone.path)
            gone.delete()

    def delete(self) -> None:
        """Delete the files, first those that are elsewhere: the folder knows where."""
        self._delete_temporary()
        delete_folder(str(self.path))

    def exists(self) -> bool:
        """Whether the container is there."""
        try:
            with open_folder(self.path):
                return True
        except FileNotFoundError:
            return False

    def spec(self) -> dict[str, Any] | None:
        """What it was created with."""
        spec = self._json("container.json")
        match spec:
            case None | {"slot_id": int(), "slot_name": str(), "environment": dict()}:
                return spec
        raise EngineRefused(f"{self.path.name}/container.json makes no sense.")

    def start(
        self, spawner: Spawner, command: Sequence[str], environment: Mapping[str, str]
    ) -> int:
        """Start the bot unless it runs, and return its supervisor's number.

        Raises `ContainerMissing`.
        """
        spec = self.spec()
        if spec is None:
            raise ContainerMissing(f"{self.path.name} is gone.")
        if (leader := self.leader()) is not None:
            return leader.pid
        self._delete_temporary()
        temporary = TEMPORARY / f"botpool-slot-{secrets.token_hex(8)}"
        order = {
            "folder": str(self.path),
            "command": command,
            "environment": {
                "PATH": os.environ.get("PATH", os.defpath),
                "LANG": os.environ.get("LANG", "C.UTF-8"),
                "HOME": str(self.path / "work"),
                "TMPDIR": str(temporary),
                **spec["environment"],
                **environment,
                REFERENCE: self.path.name,
            },
            "temporary": str(temporary),
        }
        with open_folder(self.path) as folder, spawner.supervisor() as supervisor:
            pid = supervisor.order(json.dumps(order).encode())
            start = start_mark(pid)
            if start is None:
                raise ProcessLookupError(f"supervisor {pid} has ended")
            run = Run(pid, start, temporary.name)
            write_whole(folder, "run.json", json.dumps(asdict(run)).encode())
            supervisor.go()
        return pid

    def observe(self) -> Observation:
        """What the container is doing."""
        if not self.exists():
            return Observation(state=ContainerState.MISSING)
        leader = self.leader()
        if not self._started():
            state = ContainerState.CREATED if leader is None else ContainerState.STARTING
            return Observation(state=state)
        code = self.exit_code()
        if leader is not None and code is None:
            return Observation(state=ContainerState.RUNNING)
        left = [process for process in self.processes() if process != leader]
        if left:
            numbers = ", ".join(str(process.pid) for process in left)
            return Observation(
                state=ContainerState.FAILED,
                exit_code=code,
                detail=f"it ended but left processes behind: {numbers}",
            )
        if leader is not None:  # about to end
            return Observation(state=ContainerState.RUNNING)
        return Observation(
            state=ContainerState.EXITED, exit_code=code, detail="killed" if code is None else ""
        )

    def exit_code(self) -> int | None:
        """The bot's exit code, `None` while it runs and if there is no readable record of it."""
        try:
            return int(read_whole(self.path / "exit"))
        except (FileNotFoundError, ValueError, EngineRefused):
            return None

    def leader(self) -> psutil.Process | None:
        """The supervisor, if it is alive and the one that was started."""
        run = self._run()
        if run is None or start_mark(run.pid) != run.start:
            return None
        try:
            process = psutil.Process(run.pid)
        except psutil.NoSuchProcess:
            return None
        return process if alive(process) else None

    def processes(self) -> list[psutil.Process]:
        """Processes of the container. If none is found, none is left.

        While the supervisor lives, these are the supervisor and its descendants. If it was killed,
        or could not adopt what the bot left behind, the session and the environment of processes
        tell whose they are.
        """
        try:
            run, leader = self._run(), self.leader()
        except EngineRefused:
            # Without its record, only the environment of processes tells whose they are.
            if found := with_descendants(find_marked(None, REFERENCE, self.path.name)):
                return found
            raise
        if run is None:
            return []
        if leader is not None and (found := with_descendants([leader])):
            return found
        # While a session has members, no other process gets its number. If another process has the
        # number now, its start differs.
        ours = start_mark(run.pid) in {None, run.start}
        return with_descendants(find_marked(run.pid if ours else None, REFERENCE, self.path.name))

    def last_lines(self, lines: int) -> list[str]:
        """The end of what the bot wrote."""
        try:
            with open_file(self.path / "output") as output:
                size = os.fstat(output).st_size
                end = os.pread(output, _READ_OUTPUT, max(0, size - _READ_OUTPUT))
        except FileNotFoundError:
            return []
        return end.decode("utf-8", "replace").splitlines()[-lines:] if lines > 0 else []

    def bound_output(self) -> None:
        """Cut an output that is too long, and keep its end. This is safe: the bot only appends."""
        with (
            suppress(FileNotFoundError),
            open_file(self.path / "output", os.O_RDWR | os.O_APPEND) as output,
        ):
            size = os.fstat(output).st_size
            if size > _LONGEST_OUTPUT:
                end = os.pread(output, _READ_OUTPUT, size - _READ_OUTPUT)
                os.ftruncate(output, 0)
                os.write(output, end)

    def describe(self, text: str) -> None:
        """Write down what the slot is doing."""
        with suppress(FileNotFoundError), open_folder(self.path) as folder:
            write_whole(folder, "description", f"{text}\n".encode())

    def _delete_temporary(self) -> None:
        """Delete a TMPDIR whose supervisor was killed."""
        run = self._run()
        if run is not None and run.temporary is not None:
            delete_temporary(str(TEMPORARY / run.temporary))

    def _run(self) -> Run | None:
        match self._json("run.json"):
            case None:
                return None
            case {"pid": int(pid), "start": str(start), "temporary": str(temporary)}:
                # Another name could lead to any folder.
                if _TEMPORARY_NAME.fullmatch(temporary):
                    return Run(pid, start, temporary)
            case {"pid": int(pid), "start": str(start)}:
                return Run(pid, start, None)  # an older botpool has written it
        raise EngineRefused(f"{self.path.name}/run.json makes no sense.")

    def _json(self, name: str) -> dict[str, Any] | None:
        """What a file says, `None` if it isn't there."""
        try:
            found = json.loads(read_whole(self.path / name))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        raise EngineRefused(f"{self.path.name}/{name} makes no sense.")

    def _started(self) -> bool:
        try:
            with open_folder(self.path) as folder:
                os.stat("started", dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True
