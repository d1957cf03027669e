"""What botpool is made of, or stands on, dies under load, for real. Nothing is lost by it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest

from botpool.states import BotStatus, FailureCause
from botpool.store.postgres.embedded import embedded_postgres
from testbed.docker import containerd, restartable_daemon
from tests.support.docker_ground import ground

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.models.bots import Bot
    from botpool.store import Store
    from testbed.docker import Daemon, RestartableDaemon
    from tests.support.docker_ground import Ground

BOTS = 20
SLOTS = 8


@asynccontextmanager
async def wave(here: Ground) -> AsyncIterator[asyncio.Task[list[int]]]:
    """Bots for more than twice the slots are asked for, and the first of them are in the meeting.

    Others wait, are deployed, or are released meanwhile. With a meeting that is not over, no bot
    has left it yet.
    """
    meeting = here.meeting
    asked = asyncio.create_task(here.ask(BOTS))
    try:
        await meeting.until_joined(SLOTS // 2)
        if not meeting.over.is_set():
            await meeting.until(lambda: meeting.present.total() >= SLOTS // 2)
        yield asked
    finally:
        asked.cancel()


@asynccontextmanager
async def on_docker_of_its_own(
    folder: Path, database_url: str, *options: str
) -> AsyncIterator[tuple[RestartableDaemon, Ground]]:
    """A botpool that serves, on a Docker that can be restarted."""
    async with (
        restartable_daemon(folder / "docker", *options) as docker,
        ground(docker, folder, database_url=database_url) as here,
        here.serve(),
    ):
        yield docker, here


def all_done_at_the_first_launch(bots: dict[int, Bot]) -> bool:
    return {(bot.status, bot.launch_attempts) for bot in bots.values()} == {(BotStatus.DONE, 1)}


async def until_heard(store: Store, bot_id: int) -> None:
    """Wait for a heartbeat of a bot that is sent from now on."""
    now = await store.installation.now()
    while (bot := await store.bots.find(bot_id)) and (bot.last_heartbeat or now) <= now:
        await asyncio.sleep(0.05)


async def test_a_worker_is_killed_and_another_goes_on(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    async with (
        ground(docker, folder, database_url=database_url) as here,
        here.serve("api"),
        here.worker() as doomed,
        here.worker(),
        wave(here) as asked,
        here.store() as store,
    ):
        # In the midst of its work.
        while not any(
            f"/{doomed.pid}/" in (slot.reserved_by or "") for slot in await store.slots.all()
        ):
            await asyncio.sleep(0.01)
        doomed.kill()
        await doomed.wait()
        assert all_done_at_the_first_launch(await here.settled(await asked))


async def test_an_api_is_killed_and_bots_in_their_call_are_heard_again_when_it_is_back(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    async with (
        ground(docker, folder, database_url=database_url) as here,
        here.serve("api") as doomed,
        here.worker(),
        here.store() as store,
    ):
        here.meeting.over.clear()
        async with wave(here) as asked:
            there = +here.meeting.present
            doomed.process.kill()
            await doomed.process.wait()
            async with here.serve("api"):
                for bot in there:
                    await until_heard(store, bot)
                assert there <= here.meeting.present
                here.meeting.over.set()
                assert all_done_at_the_first_launch(await here.settled(await asked))


async def test_a_botpool_with_all_that_it_runs_is_killed_and_the_next_one_goes_on(
    docker: Daemon, folder: Path
) -> None:
    folder.chmod(0o755)
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(ground(docker, folder))
        doomed = await stack.enter_async_context(here.serve())
        # Its PostgreSQL outlives it, and ends with the test.
        here.settings["database_url"] = await stack.enter_async_context(embedded_postgres(folder))
        async with wave(here) as asked:
            doomed.process.kill()
            await doomed.process.wait()
            await stack.enter_async_context(here.serve())
            assert all_done_at_the_first_launch(await here.settled(await asked))


async def test_postgresql_is_stopped_at_once_and_comes_back(docker: Daemon, folder: Path) -> None:
    folder.chmod(0o755)
    data = folder / "server"
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_postgres(data))
        here = await stack.enter_async_context(ground(docker, folder, database_url=url))
        await stack.enter_async_context(here.serve())
        async with wave(here) as asked:
            pid = int((data / "postgres" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)  # as `pg_ctl stop -m immediate` does
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)
            await stack.enter_async_context(embedded_postgres(data))
            assert all_done_at_the_first_launch(await here.settled(await asked))


async def test_every_connection_to_postgresql_is_cut_again_and_again(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    async with (
        ground(docker, folder, database_url=database_url) as here,
        here.serve(),
        wave(here) as asked,
    ):
        connection = await asyncpg.connect(database_url)
        cut = 0
        for joined in range(SLOTS // 2, BOTS, 2):
            await here.meeting.until_joined(joined)
            cut += await connection.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await connection.close()
        assert cut > BOTS // 2
        assert all_done_at_the_first_launch(await here.settled(await asked))


async def test_docker_is_restarted_and_its_containers_die_with_it(
    folder: Path, database_url: str
) -> None:
    async with on_docker_of_its_own(folder, database_url) as (docker, here):
        here.meeting.over.clear()
        async with wave(here) as asked:
            await docker.restart(signal.SIGTERM)
            here.meeting.over.set()
            bots = await here.settled(await asked)
        # Bots that were in the call are not sent there again; all others are.
        failed = [bot for bot in bots.values() if bot.status is not BotStatus.DONE]
        assert 0 < len(failed) <= SLOTS
        for bot in failed:
            assert bot.failure_cause is FailureCause.CRASHED, bot.failure_reason
            assert here.meeting.joined[bot.id] == 1


async def test_docker_that_is_long_about_its_end_costs_no_bot_both_launches(
    folder: Path, database_url: str
) -> None:
    async with on_docker_of_its_own(folder, database_url) as (docker, here):
        meeting = here.meeting
        meeting.lobby.clear()
        # Docker waits for these. The slots of those that it has ended could go to others meanwhile.
        stubborn = await here.ask(2, do="ignore SIGTERM")
        asked = asyncio.create_task(here.ask(SLOTS))
        await meeting.until(lambda: len(meeting.arrived) >= SLOTS)
        await docker.restart(signal.SIGTERM)
        meeting.lobby.set()
        bots = await here.settled([*stubborn, *await asked])
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_docker_is_restarted_and_its_containers_live_on(
    folder: Path, database_url: str, number: signal.Signals
) -> None:
    async with (
        containerd(folder / "containerd") as address,
        on_docker_of_its_own(
            *(folder, database_url, "--live-restore", "--containerd", address)
        ) as (docker, here),
    ):
        here.meeting.over.clear()
        async with wave(here) as asked:
            there = +here.meeting.present
            await docker.restart(number)
            assert there <= here.meeting.present
            here.meeting.over.set()
            bots = await here.settled(await asked)
        assert {bot.status for bot in bots.values()} == {BotStatus.DONE}
        assert {bots[bot].launch_attempts for bot in there} == {1}
