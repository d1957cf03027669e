"""The folder of one container of the `process` engine, and the processes that run for it.

Everything about a container is in its folder, so a botpool that is started again finds it all:

    container.json   what it was created with; only its owner can read it
    work/            where the bot runs: its home, and its temporary files
    run.json         the process that leads it: its number and when it started
    started          exists once the bot itself was started
    exit             its exit code
    output           what it wrote
    description      what its slot is doing

A small shell script leads a bot. It waits until `run.json` is written. So a botpool that is killed
while it starts a bot has either recorded the process, or started nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from botpool.engines.base import REFERENCE, ContainerState, Observation
from botpool.engines.process.tree import alive, find_processes, start_mark
from botpool.errors import ContainerMissing, EngineRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from botpool.engines.base import ContainerSpec

# The script ignores signals and outlives the bot, so that it can record how the bot ended.
_SCRIPT = """
folder=$1; shift
read -r go || exit 125
: > "$folder/started"
trap : TERM INT HUP
"$@" < /dev/null
echo $? > "$folder/exit.new"
mv "$folder/exit.new" "$folder/exit"
"""

_LONGEST_OUTPUT = 20_000_000
_READ_OUTPUT = 1_000_000


class Folder:
    """One container. Every call blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, spec: ContainerSpec) -> None:
        """Create the folder, empty. Raises `EngineRefused` while something runs in it."""
        self.remove()
        # Names that begin with a dot are not listed, so a half-made container is not either.
        half = self.path.with_name(f".{self.path.name}")
        shutil.rmtree(half, ignore_errors=True)
        (half / "work" / "tmp").mkdir(parents=True)
        half.chmod(0o700)
        _write(
            half / "container.json",
            {
                "slot_id": spec.slot_id,
                "slot_name": spec.slot_name,
                "environment": dict(spec.environment),
            },
        )
        half.rename(self.path)

    def remove(self) -> None:
        """Remove the folder, if there is one. Raises `EngineRefused` while something runs in it."""
        if self.processes():
            raise EngineRefused(f"{self.path.name} is running.")
        if self.path.exists():
            # Renamed first: a folder that is half removed must not look like a container.
            gone = self.path.with_name(f".{self.path.name}-{secrets.token_hex(4)}")
            self.path.rename(gone)
            shutil.rmtree(gone)

    def spec(self) -> dict[str, Any] | None:
        """What it was created with."""
        try:
            found: dict[str, Any] = json.loads((self.path / "container.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return found

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int | None:
        """Start the bot and return the number of the process that leads it, our child.

        `None` if it runs already. Raises `ContainerMissing`.
        """
        spec = self.spec()
        if spec is None:
            raise ContainerMissing(f"{self.path.name} is gone.")
        if self.leader() is not None:
            return None
        work = self.path / "work"
        with (self.path / "output").open("ab") as output:
            child = subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", _SCRIPT, "botpool", str(self.path), *command],
                cwd=work,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "LANG": os.environ.get("LANG", "C.UTF-8"),
                    "HOME": str(work),
                    "TMPDIR": str(work / "tmp"),
                    **spec["environment"],
                    **environment,
                    REFERENCE: self.path.name,
                },
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _write(self.path / "run.json", {"pid": child.pid, "start": start_mark(child.pid)})
        if child.stdin is not None:
            with suppress(BrokenPipeError), child.stdin:
                child.stdin.write(b"go\n")
        # The process may outlive us; its parent at that time waits for it.
        child.returncode = 0
        return child.pid

    def observe(self) -> Observation:
        """What the container is doing."""
        if not self.path.is_dir():
            return Observation(state=ContainerState.MISSING)
        started = self.started()
        if self.leader() is not None:
            return Observation(state=ContainerState.RUNNING if started else ContainerState.STARTING)
        if not started:
            return Observation(state=ContainerState.CREATED)
        code = self._exit_code()
        left = self.processes()
        if left:
            numbers = ", ".join(str(process.pid) for process in left)
            return Observation(
                state=ContainerState.FAILED,
                exit_code=code,
                detail=f"it ended but left processes behind: {numbers}",
            )
        return Observation(
            state=ContainerState.EXITED, exit_code=code, detail="killed" if code is None else ""
        )

    def started(self) -> bool:
        """Whether the bot itself was started."""
        return (self.path / "started").exists()

    def leader(self) -> psutil.Process | None:
        """The process that leads the container, if it is alive and the one that was started."""
        run = self._run()
        if run is None or start_mark(run["pid"]) != run["start"]:
            return None
        try:
            process = psutil.Process(run["pid"])
        except psutil.NoSuchProcess:
            return None
        return process if alive(process) else None

    def processes(self) -> list[psutil.Process]:
        """Every process of the container, including those that left its group."""
        run = self._run()
        if run is None:
            return []
        # While a session has members, no other process gets its number. If another process has the
        # number now, its start differs.
        ours = start_mark(run["pid"]) in {None, run["start"]}
        return find_processes(run["pid"] if ours else None, REFERENCE, self.path.name)

    def _run(self) -> dict[str, Any] | None:
        try:
            run: dict[str, Any] = json.loads((self.path / "run.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return run

    def last_lines(self, lines: int) -> list[str]:
        """The end of what the bot wrote."""
        try:
            with (self.path / "output").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_OUTPUT))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-lines:] if lines > 0 else []

    def bound_output(self) -> None:
        """Cut an output that is too long, and keep its end. This is safe: the bot only appends."""
        output = self.path / "output"
        with suppress(FileNotFoundError):
            size = output.stat().st_size
            if size > _LONGEST_OUTPUT:
                with output.open("rb") as file:
                    file.seek(size - _READ_OUTPUT)
                    end = file.read()
                os.truncate(output, 0)
                with output.open("ab") as file:
                    file.write(end)

    def describe(self, text: str) -> None:
        """Write down what the slot is doing."""
        with suppress(FileNotFoundError):
            (self.path / "description").write_text(f"{text}\n", "utf-8")

    def _exit_code(self) -> int | None:
        try:
            return int((self.path / "exit").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    new.replace(path)
