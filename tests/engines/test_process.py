"""What only the process engine has: folders, pids, and children that outlive botpool."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from botpool.engines import make_engines
from botpool.engines.base import Container, ContainerSpec, ContainerState, Observation
from botpool.engines.process.engine import ProcessEngine
from botpool.engines.process.folder import Folder
from botpool.errors import EngineUnavailable
from botpool.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WAITS = "echo ready; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def engine_in(folder: Path, script: str = WAITS) -> ProcessEngine:
    return ProcessEngine(folder / "slots", ["/bin/sh", "-c", script])


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """Where the engines of a test have their containers. Whatever runs there is gone at the end."""
    yield tmp_path
    engine = engine_in(tmp_path)
    for found in await engine.list(engine.hosts()[0]):
        await engine.stop(found.container, 0)


async def created(engine: ProcessEngine) -> Container:
    spec = ContainerSpec(
        host=engine.hosts()[0],
        name="pool-zoom-001-abcdef",
        slot_id=1,
        slot_name="pool-zoom-001",
        image=None,
        environment={"BOTPOOL_SLOT_TOKEN": "secret"},
    )
    return Container(spec.host, await engine.create(spec))


async def started(engine: ProcessEngine, word: str = "ready") -> Container:
    container = await created(engine)
    await engine.start(container, {})
    while word not in await engine.logs(container, 10):
        assert (await engine.observe(container)).state is ContainerState.RUNNING
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
        folder, "engine.start(Container(engine.hosts()[0], 'pool-zoom-001-abcdef'), {})", "_write"
    )
    while named(container):
        pass  # the script ends by itself: it was not told to go on
    assert (await engine.observe(container)).state is ContainerState.CREATED
    await engine.start(container, {})
    assert (await engine.observe(container)).state is ContainerState.RUNNING


async def killed_botpool(folder: Path, what: str, at: str | None = None) -> None:
    """Let another process do something, and be killed after it, or when it calls `at`."""
    code = f"""
import asyncio, os, pathlib
from botpool.engines.process import folder
from tests.engines.test_process import Container, engine_in, started

def die(*_):
    os.kill(os.getpid(), 9)

async def main():
    engine = engine_in(pathlib.Path({str(folder)!r}))
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
        pass
    assert (observation.state, observation.exit_code) == (ContainerState.FAILED, 3)
    await engine.stop(container, 5)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    assert named(container) == []


async def test_a_child_without_our_environment_is_found_when_its_leader_is_dead(
    folder: Path,
) -> None:
    engine = engine_in(folder, "env -i sh -c 'echo $$ > child; exec sleep 3600' & echo; exit 0")
    container = await created(engine)
    await engine.start(container, {})
    child = folder / "slots" / container.ref / "work" / "child"
    while not child.exists() or not child.read_text():
        pass
    while (await engine.observe(container)).state is ContainerState.RUNNING:
        pass
    assert (await engine.observe(container)).state is ContainerState.FAILED
    await engine.stop(container, 0.1)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    pid = int(child.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


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

    def cut_short(*_: object, **__: object) -> None:
        raise OSError("killed")

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
        pass
    assert observation.detail == "killed"


async def test_a_command_that_is_not_there_exits_with_127(folder: Path) -> None:
    engine = ProcessEngine(folder / "slots", ["/nowhere/bot"])
    container = await created(engine)
    await engine.start(container, {})
    while (observation := await engine.observe(container)).state is ContainerState.RUNNING:
        pass
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
