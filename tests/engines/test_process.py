"""What only the process engine has: folders, pids, and children that outlive botpool."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from botpool.engines.base import Container, ContainerSpec, ContainerState
from botpool.engines.process import ProcessEngine
from botpool.errors import EngineUnavailable

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
        pass  # the script ends by itself: nobody told it to go on
    assert (await engine.observe(container)).state is ContainerState.CREATED
    await engine.start(container, {})
    assert (await engine.observe(container)).state is ContainerState.RUNNING


async def killed_botpool(folder: Path, what: str, at: str | None = None) -> None:
    """Let another process do something, and be killed after it, or when it calls `at`."""
    code = f"""
import asyncio, os, pathlib
from botpool.engines import process_folder
from tests.engines.test_process import Container, engine_in, started

def die(*_):
    os.kill(os.getpid(), 9)

async def main():
    engine = engine_in(pathlib.Path({str(folder)!r}))
    {f"process_folder.{at} = die" if at else ""}
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
    # As if the bot's number had been given to somebody else.
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


async def test_what_a_container_was_made_with_is_nobody_elses_to_read(folder: Path) -> None:
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
