"""What only the process engine has: folders, pids, and children that outlive botpool."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from botpool.engines import make_engines
from botpool.engines.base import Container, ContainerSpec, ContainerState, Observation
from botpool.engines.process import folder as folder_module
from botpool.engines.process import supervisor
from botpool.engines.process.engine import ProcessEngine
from botpool.engines.process.folder import Folder
from botpool.engines.process.tree import alive
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.settings import Settings
from botpool.states import Platform
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

WAITS = "echo ready; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
ESCAPES = "setsid env -i /bin/sh -c 'echo $$ > child.new; mv child.new child; exec sleep 3600' &"
"""Leave a process in a session of its own, without an environment."""
CHROMIUM_SOCKET = "org.chromium.Chromium.XXXXXX/SingletonSocket"

linux = pytest.mark.skipif(sys.platform != "linux", reason="supervisors adopt on Linux only")

_engines: list[ProcessEngine] = []


def engine_in(folder: Path, script: str = WAITS) -> ProcessEngine:
    engine = ProcessEngine(folder / "slots", ["/bin/sh", "-c", script])
    _engines.append(engine)
    return engine


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """Where the engines of a test have their containers. Whatever runs there is gone at the end."""
    yield tmp_path
    engine = engine_in(tmp_path)
    for found in await engine.list(engine.hosts()[0]):
        await engine.stop(found.container, 0)
        await engine.remove(found.container)
    while _engines:
        await _engines.pop().close()


async def created(engine: ProcessEngine, number: int = 1) -> Container:
    spec = ContainerSpec(
        host=engine.hosts()[0],
        name=f"pool-zoom-{number:03}-abcdef",
        slot_id=number,
        slot_name=f"pool-zoom-{number:03}",
        platform=Platform.ZOOM,
        image=None,
        environment={"BOTPOOL_SLOT_TOKEN": "secret"},
    )
    return Container(spec.host, await engine.create(spec))


async def started(engine: ProcessEngine, number: int = 1, word: str = "ready") -> Container:
    container = await created(engine, number)
    await engine.start(container, {})
    while word not in await engine.logs(container, 10):
        assert (await engine.observe(container)).state is ContainerState.RUNNING
        await a_moment()
    return container


async def test_a_botpool_that_starts_anew_finds_what_runs(folder: Path) -> None:
    container = await started(engine_in(folder))
    again = engine_in(folder)
    assert again.hosts() == engine_in(folder).hosts()
    assert (await again.observe(container)).state is ContainerState.RUNNING
    await again.start(container, {})
    assert await again.logs(container, 10) == ["ready"]
    await again.stop(container, 10)
    observation = await again.observe(container)
    assert (observation.state, observation.exit_code) == (ContainerState.EXITED, 0)


async def test_a_bot_outlives_the_kill_of_the_botpool_that_started_it(folder: Path) -> None:
    await killed_botpool(folder, "started(engine)")
    engine = engine_in(folder)
    (found,) = await engine.list(engine.hosts()[0])
    assert found.observation.state is ContainerState.RUNNING
    await engine.stop(found.container, 10)
    assert (await engine.observe(found.container)).state is ContainerState.EXITED


async def test_nothing_was_started_by_who_was_killed_before_it_could_record_it(
    folder: Path,
) -> None:
    engine = engine_in(folder)
    container = await created(engine)
    await killed_botpool(
        folder, "engine.start(Container(engine.hosts()[0], 'pool-zoom-001-abcdef'), {})", "Run"
    )
    while working(folder, container):
        await a_moment()  # the supervisor ends by itself: it was not told to go on
    assert (await engine.observe(container)).state is ContainerState.CREATED
    await engine.start(container, {})
    assert (await engine.observe(container)).state is ContainerState.RUNNING


async def killed_botpool(
    folder: Path, what: str, at: str | None = None, script: str = WAITS
) -> None:
    """Let another process do something, and be killed after it, or when it calls `at`."""
    code = f"""
import asyncio, os, pathlib
from botpool.engines.process import folder
from tests.engines.test_process import Container, engine_in, started

def die(*_):
    os.kill(os.getpid(), 9)

async def main():
    engine = engine_in(pathlib.Path({str(folder)!r}), {script!r})
    {f"folder.{at} = die" if at else ""}
    await {what}
    die()

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == -signal.SIGKILL


async def test_a_process_that_got_the_number_of_a_dead_bot_is_left_alone(folder: Path) -> None:
    engine = engine_in(folder)
    container = await started(engine)
    await engine.stop(container, 10)
    # As if the bot's number had been given to another process.
    stranger = await asyncio.create_subprocess_exec("sleep", "3600", start_new_session=True)
    run = folder / "slots" / container.ref / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "pid": stranger.pid}))
    assert (await engine.observe(container)).state is ContainerState.EXITED
    await engine.stop(container, 0)
    assert stranger.returncode is None
    assert psutil.Process(stranger.pid).status() != psutil.STATUS_ZOMBIE
    stranger.kill()
    await stranger.wait()


@pytest.mark.parametrize(
    "script",
    ["setsid sleep 3600 &", """setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &"""],
    ids=["listens", "does not listen"],
)
async def test_a_child_that_left_the_group_is_found_and_ended(folder: Path, script: str) -> None:
    engine = engine_in(folder, f"{script} {WAITS}")
    container = await started(engine)
    await engine.stop(container, 0.3)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    assert named(container) == []


async def test_a_bot_that_ended_and_left_children_is_not_stopped(folder: Path) -> None:
    engine = engine_in(folder, "setsid sleep 3600 & exit 3")
    container = await created(engine)
    await engine.start(container, {})
    while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
        await a_moment()
    assert (observation.state, observation.exit_code) == (ContainerState.FAILED, 3)
    await engine.stop(container, 5)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    assert named(container) == []


@linux
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "ends"])
async def test_a_child_that_left_its_session_and_its_environment_is_found_and_ended(
    folder: Path, goes_on: bool
) -> None:
    engine = engine_in(folder, f"{ESCAPES} {WAITS if goes_on else 'exit 3'}")
    container = await created(engine)
    await engine.start(container, {})
    child = await escaped(folder, container)
    if not goes_on:
        while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
            await a_moment()
        assert (observation.state, observation.exit_code) == (ContainerState.FAILED, 3)
        assert observation.detail.endswith(f": {child.pid}")
    await engine.stop(container, 5)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    assert not child.is_running()


@linux
async def test_a_child_is_found_by_a_botpool_that_did_not_start_it(folder: Path) -> None:
    await killed_botpool(folder, "started(engine)", script=f"{ESCAPES} {WAITS}")
    engine = engine_in(folder)
    (found,) = await engine.list(engine.hosts()[0])
    child = await escaped(folder, found.container)
    await engine.stop(found.container, 5)
    assert not child.is_running()


@linux
async def test_a_process_that_was_forked_after_the_look_is_not_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(folder, f"{ESCAPES} {WAITS}")
    container = await started(engine)
    child = await escaped(folder, container)
    looks, processes = count(), Folder.processes

    def found(folder: Folder) -> list[psutil.Process]:
        first = next(looks) == 0
        return [each for each in processes(folder) if not (first and each == child)]

    monkeypatch.setattr(Folder, "processes", found)
    await engine.stop(container, 0)
    assert not child.is_running()


async def test_a_bot_whose_supervisor_is_killed_is_still_found_and_ended(folder: Path) -> None:
    engine = engine_in(folder, "env -i sleep 3600 & setsid sleep 3600 & echo ready; wait")
    container = await started(engine)
    leader = leader_of(folder, container)
    left = leader.children(recursive=True)
    leader.kill()
    while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
        await a_moment()
    assert observation.state is ContainerState.FAILED
    await engine.stop(container, 5)
    observation = await engine.observe(container)
    assert (observation.state, observation.detail) == (ContainerState.EXITED, "killed")
    assert not any(alive(process) for process in left)


async def test_bots_outlive_the_process_that_forks_their_supervisors(folder: Path) -> None:
    engine = engine_in(folder)
    first = await started(engine, 1)
    spawner = leader_of(folder, first).parent()
    assert spawner is not None
    spawner.kill()
    spawner.wait()
    assert (await engine.observe(first)).state is ContainerState.RUNNING
    second = await started(engine, 2)
    for container in (first, second):
        await engine.stop(container, 5)
        assert (await engine.observe(container)).exit_code == 0


async def test_supervisors_end_with_their_bots_and_the_last_process_with_botpool(
    folder: Path,
) -> None:
    engine = engine_in(folder)
    container = await started(engine)
    leader = leader_of(folder, container)
    spawner = leader.parent()
    assert spawner is not None
    await engine.stop(container, 5)
    assert not leader.is_running()
    await engine.close()
    assert not spawner.is_running()


@linux
async def test_what_a_bot_leaves_behind_is_reaped(folder: Path) -> None:
    engine = engine_in(folder, f"sh -c 'sleep 0 & echo $! > child' ; {WAITS}")
    container = await started(engine)
    pid = int((folder / "slots" / container.ref / "work" / "child").read_text())
    while psutil.pid_exists(pid):
        await a_moment()
    assert (await engine.observe(container)).state is ContainerState.RUNNING


async def test_a_bot_that_kills_its_group_is_the_one_who_dies(folder: Path) -> None:
    engine = engine_in(folder, "kill -9 0")
    container = await created(engine)
    await engine.start(container, {})
    while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
        await a_moment()
    assert (observation.state, observation.exit_code) == (ContainerState.EXITED, 128 + 9)


@linux
async def test_a_bot_ignores_no_signal_and_has_no_file_of_ours(folder: Path) -> None:
    engine = engine_in(folder, f"grep Sig[BI] /proc/self/status; ls /proc/$$/fd; {WAITS}")
    # As a shell does with what it runs in the background.
    usual = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        container = await started(engine)
    finally:
        signal.signal(signal.SIGQUIT, usual)
    lines = await engine.logs(container, 100)
    # The two after 31 are the C library's own.
    signals = {name: int(mask, 16) & (2**31 - 1) for name, mask in map(str.split, lines[:2])}
    assert signals == {"SigBlk:": 0, "SigIgn:": 0}
    assert lines[2:-1] == ["0", "1", "2"]


async def test_a_stopped_supervisor_does_not_keep_its_container(folder: Path) -> None:
    engine = engine_in(folder)
    container = await started(engine)
    leader_of(folder, container).suspend()
    await engine.stop(container, 0)
    assert (await engine.observe(container)).state is ContainerState.EXITED


async def test_a_bot_has_a_short_folder_of_its_own_for_sockets(folder: Path) -> None:
    deep = folder / ("d" * 150)
    deep.mkdir()
    engine = engine_in(deep, f"echo $TMPDIR; {WAITS}")
    paths = []
    for number in (1, 2):
        container = await started(engine, number)
        path = temporary(await engine.logs(container, 10))
        paths.append(path)
        assert path.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_uid == os.geteuid()
        name = path / CHROMIUM_SOCKET
        name.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(name))
        await engine.stop(container, 5)
        assert not path.exists()
    assert paths[0] != paths[1]


async def test_the_temporary_files_of_a_killed_supervisor_are_removed_with_its_container(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo $TMPDIR; echo ready; exec sleep 3600"
    await killed_botpool(folder, "started(engine)", script=script)
    engine = engine_in(folder)
    (found,) = await engine.list(engine.hosts()[0])
    path = temporary(await engine.logs(found.container, 10))
    leader_of(folder, found.container).kill()
    await engine.stop(found.container, 5)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", cut_short)
        with pytest.raises(EngineUnavailable):
            await engine.remove(found.container)
    assert path.exists()
    (left,) = (folder / "slots").glob(".pool-*")
    os.utime(left, (0, 0))
    await engine.list(engine.hosts()[0])
    assert not path.exists()
    assert not left.exists()


async def test_a_temporary_folder_that_another_user_has_now_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(folder, "echo $TMPDIR; echo ready; exec sleep 3600")
    container = await started(engine)
    path = temporary(await engine.logs(container, 10))
    leader_of(folder, container).kill()
    await engine.stop(container, 5)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    await engine.remove(container)
    assert path.is_dir()
    path.rmdir()


def as_empty(path: Path) -> None:
    path.write_bytes(b"")


def as_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def as_nothing(path: Path) -> None:
    path.write_text("null")


def as_other_folder(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "temporary": "../home"}))


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "spoil", [as_empty, as_half, as_nothing, as_other_folder, as_link, as_pipe, as_folder]
)
async def test_an_unreadable_record_is_refused_for_its_container_and_no_other(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    engine = engine_in(folder)
    bad, good = await started(engine, 1), await started(engine, 2)
    leader = leader_of(folder, bad)
    spoil(folder / "slots" / bad.ref / "run.json")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.start(bad, {}),
        lambda: engine.observe(bad),
        lambda: engine.stop(bad, 0),
        lambda: engine.remove(bad),
    ]
    for call in calls:
        with pytest.raises(EngineRefused, match=rf"{bad.ref}/run\.json"):
            await call()
    listed = {each.container: each for each in await engine.list(engine.hosts()[0])}
    assert listed[good].observation.state is ContainerState.RUNNING
    assert (listed[bad].slot_id, listed[bad].slot_name) == (1, "pool-zoom-001")
    assert listed[bad].observation.state is ContainerState.FAILED
    assert "run.json" in listed[bad].observation.detail
    end(leader)
    (folder / "slots" / bad.ref).rename(folder / "set-aside")


async def test_a_container_whose_slot_can_not_be_read_is_listed_without_one(folder: Path) -> None:
    engine = engine_in(folder)
    bad, good = await created(engine, 1), await created(engine, 2)
    as_half(folder / "slots" / bad.ref / "container.json")
    listed = {each.container: each for each in await engine.list(engine.hosts()[0])}
    assert listed[good].slot_id == 2
    assert (listed[bad].slot_id, listed[bad].slot_name) == (None, bad.ref)
    with pytest.raises(EngineRefused):
        await engine.start(bad, {})


async def test_a_file_is_on_disk_before_it_has_its_name_and_so_is_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(number: int) -> None:
        steps.append(f"fsync {Path(f'/proc/self/fd/{number}').readlink().name[:5]}")
        fsync(number)

    def record_rename(source: str, target: str, **options: int) -> None:
        steps.append(f"rename {source[:5]} {target}")
        assert (tmp_path / "file").read_text() == "old"
        rename(source, target, **options)

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    number = os.open(tmp_path, os.O_RDONLY)
    supervisor.write_whole(number, "file", b"new")
    os.close(number)
    assert steps == ["fsync .file", "rename .file file", f"fsync {tmp_path.name[:5]}"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


async def test_no_link_leads_out_of_a_container(folder: Path) -> None:
    outside = folder / "outside"
    outside.write_text("precious")
    engine = engine_in(folder)
    container = await started(engine)
    path = folder / "slots" / container.ref
    for name in ("description", "output", "exit"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(outside)
    await engine.describe(container, "[BUSY]")
    assert (path / "description").read_text() == "[BUSY]\n"
    with pytest.raises(EngineRefused):
        await engine.logs(container, 10)
    (listed,) = await engine.list(engine.hosts()[0])
    assert listed.observation.state is ContainerState.FAILED
    await engine.stop(container, 5)
    assert (await engine.observe(container)).exit_code == 0
    assert outside.read_text() == "precious"
    await engine.remove(container)
    assert outside.exists()


async def test_a_container_whose_folder_is_a_link_is_refused(folder: Path) -> None:
    engine = engine_in(folder)
    container = await created(engine)
    path = folder / "slots" / container.ref
    path.rename(folder / "outside")
    path.symlink_to(folder / "outside")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.start(container, {}),
        lambda: engine.observe(container),
        lambda: engine.describe(container, "[IDLE]"),
        lambda: engine.remove(container),
    ]
    for call in calls:
        with pytest.raises(EngineRefused):
            await call()
    (listed,) = await engine.list(engine.hosts()[0])
    assert listed.observation.state is ContainerState.FAILED
    assert sorted(each.name for each in (folder / "outside").iterdir()) == [
        "container.json",
        "work",
    ]
    path.unlink()


async def test_who_cancels_a_call_waits_until_its_thread_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(folder)
    container = await created(engine)
    entered, go_on = threading.Event(), threading.Event()
    observe = Folder.observe

    def slow(folder: Folder) -> Observation:
        entered.set()
        go_on.wait()
        return observe(folder)

    monkeypatch.setattr(Folder, "observe", slow)
    call = asyncio.create_task(engine.observe(container))
    await asyncio.to_thread(entered.wait)
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=0.05)
    assert not done
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_removal_that_was_cut_short_leaves_nothing_that_looks_like_a_container(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(folder)
    container = await created(engine)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", cut_short)
        with pytest.raises(EngineUnavailable):
            await engine.remove(container)
    assert (await engine.observe(container)).state is ContainerState.MISSING
    assert await engine.list(engine.hosts()[0]) == []
    (left,) = (folder / "slots").glob(".pool-*")
    os.utime(left, (0, 0))
    await engine.list(engine.hosts()[0])
    assert not left.exists()


def test_botpools_that_share_a_data_folder_keep_their_bots_apart(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    one, other = (make_engines(settings, name)["process"] for name in ("one", "other"))
    assert one.hosts() != other.hosts()


async def test_a_bot_that_was_killed_from_outside_has_exited(folder: Path) -> None:
    engine = engine_in(folder)
    container = await started(engine)
    for process in named(container):
        process.kill()
    while (observation := await engine.observe(container)).state is not ContainerState.EXITED:
        await a_moment()
    assert observation.exit_code == 128 + 9


async def test_a_command_that_is_not_there_exits_with_127(folder: Path) -> None:
    engine = ProcessEngine(folder / "slots", ["/nowhere/bot"])
    _engines.append(engine)
    container = await created(engine)
    await engine.start(container, {})
    while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
        await a_moment()
    assert (observation.state, observation.exit_code) == (ContainerState.EXITED, 127)


async def test_what_a_container_was_made_with_is_not_for_other_users_to_read(folder: Path) -> None:
    container = await created(engine_in(folder))
    path = folder / "slots" / container.ref
    assert (path / "container.json").stat().st_mode & 0o077 == 0
    assert path.stat().st_mode & 0o077 == 0


async def test_an_output_that_grows_too_long_is_cut_at_its_beginning(folder: Path) -> None:
    engine = engine_in(folder)
    container = await started(engine)
    output = folder / "slots" / container.ref / "output"
    with output.open("ab") as file:
        file.write((b"x" * 79 + b"\n") * 300_000)
        file.write(b"last\n")
    await engine.list(engine.hosts()[0])
    assert output.stat().st_size <= 1_000_000
    assert (await engine.logs(container, 1)) == ["last"]


async def test_the_containers_of_another_machine_are_not_ours_to_judge(folder: Path) -> None:
    engine = engine_in(folder)
    with pytest.raises(EngineUnavailable, match="not on this machine"):
        await engine.observe(Container("elsewhere", "pool-zoom-001-abcdef"))


def cut_short(*_: object, **__: object) -> None:
    raise OSError("killed")


def temporary(lines: list[str]) -> Path:
    """The TMPDIR that a bot told."""
    (path,) = [Path(line) for line in lines if line.startswith("/")]
    return path


async def escaped(folder: Path, container: Container) -> psutil.Process:
    """The process that a bot left by ESCAPES."""
    path = folder / "slots" / container.ref / "work" / "child"
    while not path.exists():
        await a_moment()
    return psutil.Process(int(path.read_text()))


def leader_of(folder: Path, container: Container) -> psutil.Process:
    run = json.loads((folder / "slots" / container.ref / "run.json").read_text())
    return psutil.Process(run["pid"])


def end(leader: psutil.Process) -> None:
    """End a container whose records can't be read."""
    while leader.is_running():
        with suppress(psutil.NoSuchProcess):
            for process in leader.children(recursive=True):
                process.kill()


def working(folder: Path, container: Container) -> list[psutil.Process]:
    """The processes that are in the folder where the container's bot works."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder / "slots" / container.ref / "work"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def named(container: Container) -> list[psutil.Process]:
    """The processes that have the container's name in their environment."""
    found = []
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            if process.environ().get("POOL_SLOT_UUID") == container.ref:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@linux
async def test_a_bot_that_can_not_be_started_is_an_error_and_not_one_that_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "TEMPORARY", folder / "missing")
    engine = engine_in(folder)
    container = await created(engine)
    with pytest.raises(EngineUnavailable, match="No such file or directory"):
        await engine.start(container, {})


@linux
async def test_a_bot_whose_record_is_lost_is_still_stopped(folder: Path) -> None:
    engine = engine_in(folder, "trap '' TERM; echo $$ > pid.new; mv pid.new pid; sleep 3600")
    container = await created(engine)
    await engine.start(container, {})
    path = folder / "slots" / container.ref
    bot = path / "work" / "pid"
    while not bot.exists():
        await a_moment()
    process = psutil.Process(int(bot.read_text()))
    (path / "run.json").write_text("")
    with pytest.raises(EngineRefused):
        await engine.stop(container, 0)
    assert not alive(process)
    shutil.rmtree(path)


async def test_folders_that_nobody_may_write_to_are_deleted(folder: Path) -> None:
    engine = engine_in(folder, "mkdir -p kept/in; echo x > kept/in/file; chmod 500 kept/in kept")
    container = await created(engine)
    await engine.start(container, {})
    while (await engine.observe(container)).state is not ContainerState.EXITED:
        await a_moment()
    await engine.remove(container)
    assert [*(folder / "slots").glob("*pool-*")] == []
