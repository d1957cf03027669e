"""The commands of README and quickstart, as a newcomer runs them.

Each block of them is run by a shell in a fresh clone, in a folder with a space in its name: by
whoever runs the tests, and by a user who is nobody. Tests have no network: what is installed comes
from the packages that `tests/deploy/fetch` has fetched.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.support.command import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).parents[2]
PORT = "8000"
PYTHON = "/usr/bin/python3"  # for which the packages were fetched
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def blocks(path: Path) -> list[str]:
    """The blocks of commands of a page, in order."""
    return re.findall(r"^```sh\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """A folder that every user may enter, with a short path, as PostgreSQL's sockets need it."""
    with TemporaryDirectory(prefix="new") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def wheels(ground: Path) -> Path:
    """What botpool needs, where every user can read it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    fetched = Path(os.environ.get("BOTPOOL_TEST_WHEELS", cache / "botpool-test-wheels"))
    if not (fetched / "fetched").exists():
        pytest.skip("needs botpool's packages: tests/deploy/fetch")
    return Path(shutil.copytree(fetched, ground / "wheels"))


@dataclass
class Newcomer:
    """Somebody with a clone and a home of their own, who follows a page."""

    clone: Path
    environment: dict[str, str]
    user: tuple[str, ...]
    port: int

    def shell(self, commands: str) -> tuple[str, ...]:
        """A shell that runs these, on a free port in place of the usual one."""
        said = commands.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")
        return (*self.user, "bash", "-euo", "pipefail", "-c", said)

    async def run(self, commands: str) -> str:
        """Run a block to its end, and return what it prints."""
        process = await asyncio.create_subprocess_exec(
            *self.shell(commands),
            cwd=self.clone,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, f"{commands}\n{output.decode()}"
        return output.decode()

    @asynccontextmanager
    async def terminal(self, commands: str) -> AsyncIterator[None]:
        """Another terminal, in which botpool serves until Ctrl-C."""
        process = await asyncio.create_subprocess_exec(
            *self.shell(commands),
            cwd=self.clone,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        said = ""
        try:
            while f"http://127.0.0.1:{self.port}" not in said:
                line = (await process.stdout.readline()).decode()
                assert line, said
                said += line
            ends = asyncio.create_task(process.stdout.read())
            yield
            os.killpg(process.pid, signal.SIGINT)
            said += (await ends).decode()
            await process.wait()
            assert "shutting down" in said
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


@pytest.fixture(scope="module", params=["this user", "nobody"])
async def newcomer(request: pytest.FixtureRequest, ground: Path, wheels: Path) -> Newcomer:
    other = request.param == "nobody"
    if other and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("switches users, so needs root and setpriv")
    folder = ground / request.param
    clone, home = folder / "a clone", folder / "home"
    home.mkdir(parents=True)
    code, _, wrong = await run("git", "clone", "--quiet", str(ROOT), str(clone))
    assert code == 0, wrong
    if other:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHON": PYTHON,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "BOTPOOL_PORT": str(port),
    }
    return Newcomer(clone, environment, AS_NOBODY if other else (), port)


async def test_every_command_of_the_readme_runs(newcomer: Newcomer) -> None:
    serve, command, curl = blocks(newcomer.clone / "README.md")
    async with newcomer.terminal(serve):
        assert "is in its call" in await newcomer.run(command)
        assert '"meetingUrl":"https://meet.google.com/abc-defg-hij"' in await newcomer.run(curl)


async def test_every_command_of_the_quickstart_runs(newcomer: Newcomer) -> None:
    page = blocks(newcomer.clone / "docs" / "quickstart.md")
    serve, send, look, call, write, serve_own, send_own = page
    async with newcomer.terminal(serve):
        await newcomer.run(send)
        assert "google-meet" in await newcomer.run(look)
        assert '"platform":"zoom"' in await newcomer.run(call)
    await newcomer.run(write)
    async with newcomer.terminal(serve_own):
        assert "I would join https://meet.google.com/abc-defg-hij now" in await newcomer.run(
            send_own
        )
