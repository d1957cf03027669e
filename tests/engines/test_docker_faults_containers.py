"""The containers of bots are killed, removed, full or deaf, for real. Their slots go on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.states import BotStatus, FailureCause
from testbed.docker import docker_daemon, small_disk
from tests.support.docker_ground import ground
from tests.support.docker_scene import inspected
from tests.support.server import BOTS

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from testbed.docker import Daemon
    from tests.support.docker_ground import Ground


async def kill(here: Ground, bots: Collection[int]) -> None:
    """Do to the containers that bots are in what `docker kill` does."""
    async with here.store() as store, here.docker.client() as client:
        for bot_id in bots:
            bot = await store.bots.find(bot_id)
            assert bot is not None
            assert bot.container_ref is not None
            await client.containers.container(bot.container_ref).kill()


async def test_a_container_killed_before_its_call_is_another_launch_of_the_same_bot(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    async with ground(docker, folder, database_url=database_url) as here, here.serve():
        meeting = here.meeting
        meeting.lobby.clear()
        asked = await here.ask(12)
        await meeting.until(lambda: len(meeting.arrived) >= 3)
        killed = set([*meeting.arrived][:3])
        await kill(here, killed)
        await meeting.until(lambda: {meeting.arrived[bot] for bot in killed} == {2})
        meeting.lobby.set()
        bots = await here.settled(asked)
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}
        assert {bot.id for bot in bots.values() if bot.launch_attempts == 2} == killed
        assert {meeting.joined[bot] for bot in killed} == {1}


async def test_a_container_killed_in_its_call_fails_its_bot_with_its_last_words(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    async with ground(docker, folder, database_url=database_url) as here, here.serve():
        meeting = here.meeting
        meeting.over.clear()
        asked = await here.ask(12)
        await meeting.until(lambda: len(meeting.present) >= 3)
        killed = set([*meeting.present][:3])
        await kill(here, killed)
        meeting.over.set()
        bots = await here.settled(asked)
        assert {bot.id for bot in bots.values() if bot.status is BotStatus.FATAL} == killed
        for bot in (bots[bot_id] for bot_id in killed):
            assert (bot.failure_cause, bot.launch_attempts) == (FailureCause.CRASHED, 1)
            assert bot.failure_reason is not None
            assert "exited with code 137" in bot.failure_reason
            assert bot.failure_reason.endswith(f"bot {bot.id}, lease {bot.lease}\nIN_CALL")


async def test_containers_removed_from_idle_slots_are_made_again(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    settings = {"database_url": database_url, "max_pool_size": "4"}
    async with ground(docker, folder, **settings) as here, here.serve():
        asked = await here.ask(4)
        await here.settled(asked)
        before = await here.containers()
        await here.remove_containers()
        # Bots find two of them missing, the comparison the others.
        asked += await here.ask(2)
        bots = await here.settled(asked)
        assert {(bot.status, bot.launch_attempts) for bot in bots.values()} == {(BotStatus.DONE, 1)}
        after = await here.containers()
        assert len(after) == 4
        assert not before.keys() & after.keys()


async def test_a_container_that_can_not_be_started_any_more_is_made_again(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    settings = {"database_url": database_url, "max_pool_size": "1"}
    async with ground(docker, folder, **settings) as here, here.serve():
        asked = await here.ask()
        await here.settled(asked)
        (name,) = await here.containers()
        # What a Docker that has died in the midst of a start leaves behind.
        tasks = docker.folder / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"
        (tasks / (await inspected(docker, name))["Id"]).mkdir()
        asked += [*await here.ask(), *await here.ask()]
        bots = await here.settled(asked)
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}
        assert [bots[bot].launch_attempts for bot in asked] == [1, 2, 1]


async def test_a_bot_whose_own_disk_is_full_fails_saying_so_and_its_slot_is_used_again(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    settings = {"database_url": database_url, "max_pool_size": "1", "docker_shm_size": "1MiB"}
    async with ground(docker, folder, **settings) as here, here.serve():
        full = await here.ask(do="fill /dev/shm")
        after = await here.ask(2)
        bots = await here.settled(full + after)
        failed = bots.pop(full[0])
        assert (failed.status, failed.failure_cause) == (BotStatus.FATAL, FailureCause.CRASHED)
        assert "exited with code 1" in (failed.failure_reason or "")
        assert "No space left on device" in (failed.failure_reason or "")
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}


async def test_a_host_whose_disk_a_bot_has_filled_goes_on_after_it(
    folder: Path, database_url: str
) -> None:
    async with (
        small_disk(folder / "disk", "24m"),
        docker_daemon(folder / "docker", None, "--data-root", str(folder / "disk")) as docker,
        ground(
            docker,
            folder,
            database_url=database_url,
            max_pool_size="4",
            # On a full disk, Docker's list may go on to say that a container runs.
            heartbeat_freshness_ms="15000",
            # Nor does it start any while the disk is full, and each attempt counts.
            max_launch_attempts="8",
        ) as here,
        here.serve(),
    ):
        meeting = here.meeting
        meeting.over.clear()
        others = await here.ask(2)
        await meeting.until(lambda: meeting.present.total() == 2)
        full = await here.ask(do="fill its disk")
        others += await here.ask(8)
        await meeting.until(lambda: meeting.joined[full[0]] == 1)
        meeting.over.set()
        bots = await here.settled(full + others)
        failed = bots.pop(full[0])
        assert failed.status is BotStatus.FATAL
        assert "exited with code 1" in (failed.failure_reason or "")
        assert [bot.failure_reason for bot in bots.values() if bot.status != "DONE"] == []


async def test_bots_that_ignore_sigterm_are_forced_after_the_grace_and_make_room(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    settings = {"database_url": database_url, "max_pool_size": "4", "leave_grace_ms": "300"}
    async with ground(docker, folder, **settings) as here, here.serve() as serve:
        meeting = here.meeting
        meeting.over.clear()
        deaf = await here.ask(4, do="ignore SIGTERM")
        await meeting.until(lambda: meeting.present.total() == 4)
        waiting = await here.ask(4)
        for bot in deaf:
            (await serve.client.post(f"{BOTS}/{bot}/stop")).raise_for_status()
        # None of them leaves by itself: the others come in their place.
        await meeting.until(lambda: all(meeting.present[bot] for bot in waiting))
        meeting.over.set()
        bots = await here.settled(deaf + waiting)
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}
        async with here.store() as store:
            for bot in deaf:
                steps = await store.transitions.timeline(bot)
                ended = next(step for step in steps if step.to_status == BotStatus.DONE)
                assert ended.reason == "stopped: it did not leave within 300 ms"
                slot = ended.slot_name
                (freed,) = [
                    step.at
                    for other in waiting
                    for step in await store.transitions.timeline(other)
                    if (step.machine, step.slot_name, step.from_status) == ("slot", slot, "idle")
                ]
                assert freed - ended.at >= timedelta(seconds=1)
