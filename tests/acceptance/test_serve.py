"""`botpool serve` as a user runs it: real processes, real sample bots, real kills."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import httpx
import psutil

from botpool.store import connect
from botpool.store.invariants import broken_invariants
from botpool.store.postgres.embedded import embedded_postgres
from tests.support.server import BOTS, ENDED, MEET, Serve, served
from tests.support.waiting import a_moment


async def test_a_new_user_sees_a_bot_run_and_end(folder: Path) -> None:
    async with served(folder) as botpool:
        (made,) = await botpool.ask(stayMs=100)
        bot_id = made["bot"]["id"]
        assert await botpool.until(*ENDED) == {"DONE": 1}
        bot = (await botpool.client.get(f"{BOTS}/{bot_id}")).json()
        assert bot["lastHeartbeat"] is not None
        timeline = (await botpool.client.get(f"{BOTS}/{bot_id}/timeline")).json()["events"]
        steps = [e["data"]["status"] for e in timeline if e["type"] == "bot.status_changed"]
        assert steps == [
            "DEPLOYING",
            "JOINING_CALL",
            "IN_WAITING_ROOM",
            "IN_CALL",
            "LEAVING",
            "DONE",
        ]
        while not (
            lines := (await botpool.client.get(f"{BOTS}/{bot_id}/logs")).json()["container"]
        ):
            await a_moment()
        assert "DONE" in lines
        assert await botpool.ends() == 0
    assert botpool.said[-1] == "shutting down …"


async def test_bots_outlive_a_botpool_and_the_next_one_finds_them(folder: Path) -> None:
    async with served(folder) as first:
        port = first.client.base_url.port
        await first.ask(stayMs=3_600_000)
        await first.until("IN_CALL")
        assert await first.ends(signal.SIGTERM) == 0
    async with served(folder, "--stop-bots", port=str(port)) as second:
        assert await second.statuses() == ["IN_CALL"]
        heard = (await second.client.get(f"{BOTS}/1")).json()["lastHeartbeat"]
        while (await second.client.get(f"{BOTS}/1")).json()["lastHeartbeat"] == heard:
            await a_moment()
        assert await second.ends() == 0
        assert second.said[-2] == "stopped 1"
    assert [each for each in psutil.process_iter() if str(folder) in _home(each)] == []


def _home(process: psutil.Process) -> str:
    try:
        return process.environ().get("HOME", "")
    except psutil.Error:
        return ""


async def test_fifty_bots_at_once_on_an_empty_pool_of_twenty_all_end(folder: Path) -> None:
    async with served(folder, max_pool_size="20", rate_limit_per_second="1000") as botpool:
        made = await botpool.ask(50, stayMs=10)
        assert Counter(one["bot"]["status"] for one in made) == {"DEPLOYING": 20, "QUEUED": 30}
        assert sorted(one["queuePosition"] for one in made if one["queuePosition"]) == [
            *range(1, 31)
        ]
        assert await botpool.until(*ENDED) == {"DONE": 50}
        assert await botpool.ends() == 0


async def test_a_worker_does_at_the_engine_what_an_operator_asks_for(folder: Path) -> None:
    async with served(folder) as botpool:
        (bot,) = await botpool.ask(stayMs=60_000)
        await botpool.until("IN_CALL")
        slot = (await botpool.client.get(f"{BOTS}/{bot['bot']['id']}")).json()["slot"]
        path = f"/api/v1/slots/{slot['id']}"
        assert (await botpool.client.post(f"{path}/compare")).status_code == 202
        while (found := (await botpool.client.get(path)).json())["comparedAt"] is None:
            await a_moment()
        assert found["comparedState"] == "running"
        await botpool.client.post(f"{BOTS}/{bot['bot']['id']}/stop")
        await botpool.until("DONE")
        assert (await botpool.client.delete(path)).status_code == 202
        while (await botpool.client.get(path)).status_code != 404:
            await a_moment()
        assert await botpool.ends() == 0


async def test_two_share_a_database_and_the_kill_of_one_loses_no_bot(folder: Path) -> None:
    folder.chmod(0o755)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_postgres(folder / "server"))
        settings = {"database_url": url, "max_pool_size": "6", "rate_limit_per_second": "1000"}
        one = await stack.enter_async_context(served(folder, **settings))
        port = one.client.base_url.port
        other = await stack.enter_async_context(
            served(folder, "--role", "all", **settings, public_url=str(one.client.base_url))
        )
        await asyncio.gather(one.ask(12, stayMs=10), other.ask(12, stayMs=10))
        one.process.kill()
        await one.process.wait()
        # It comes back where the bots look for it.
        again = await stack.enter_async_context(served(folder, **settings, port=str(port)))
        found = await again.until(*ENDED)
        assert found.total() == 24
        assert found["DONE"] == 24, found
        async with connect(url) as database:
            assert await broken_invariants(database) == []


async def test_it_is_not_ready_without_its_database_and_comes_back_by_itself(
    folder: Path,
) -> None:
    folder.chmod(0o755)
    async with AsyncExitStack() as stack:
        async with embedded_postgres(folder / "server") as url:
            botpool = await stack.enter_async_context(served(folder, database_url=url))
            await botpool.ask(stayMs=3_600_000)
            await botpool.until("IN_CALL")
            # Every connection cut at once, under load.
            connection = await asyncpg.connect(url)
            asking = asyncio.create_task(_ask_on(botpool))
            for _ in range(5):
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            await connection.close()
            created = await asking
        # Shut down with its context: gone.
        while (await botpool.client.get("/readyz")).status_code != 503:
            await a_moment()
        assert (await botpool.client.get("/healthz")).status_code == 200
        answer = await botpool.client.post(BOTS, json={"meetingUrl": MEET})
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")
        async with embedded_postgres(folder / "server"):
            while (await botpool.client.get("/readyz")).status_code != 200:
                await a_moment()
            ids = {bot["id"] for bot in (await botpool.client.get(BOTS)).json()["bots"]}
            assert created <= ids
            # The bot that was in its call still is: it was never given up.
            assert (await botpool.client.get(f"{BOTS}/1")).json()["status"] == "IN_CALL"
            await botpool.ask(stayMs=10)
            assert await botpool.ends() == 0


async def _ask_on(botpool: Serve) -> set[int]:
    """Ask for bots while the database has its troubles; those that were promised."""
    made = set()
    for _ in range(30):
        answer = await botpool.client.post(
            BOTS, json={"meetingUrl": MEET, "config": {"sample": {"stayMs": 10}}}
        )
        assert answer.status_code in {201, 503}, answer.text
        if answer.status_code == 201:
            made.add(answer.json()["bot"]["id"])
    return made


async def test_no_secret_is_written_to_the_log(folder: Path) -> None:
    async with served(folder, log_level="DEBUG") as botpool:
        await botpool.ask(stayMs=10)
        await botpool.until(*ENDED)
        link = (await botpool.client.post("/api/v1/sessions")).json()["url"]
        assert (await botpool.client.get(link)).status_code == 303
        await botpool.client.get("/sign-in", params={"key": botpool.key})
        await botpool.client.get(BOTS, headers={"Authorization": "Bearer wrong-secret-key-of-mine"})
        assert await botpool.ends() == 0
    log = "".join(path.read_text() for path in folder.glob("log-*"))
    assert botpool.key not in log
    assert link.rpartition("=")[2] not in log
    assert botpool.client.cookies["botpool"] not in log
    assert "wrong-secret-key-of-mine" not in log
    assert "BOTPOOL_SLOT_TOKEN" not in log
    assert "whsec_" not in log


async def test_an_address_that_is_taken_is_one_sentence_and_exit_code_2(folder: Path) -> None:
    async with served(folder) as botpool:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "botpool"), "serve"),
            *("--port", str(botpool.client.base_url.port)),
            env={"PATH": os.environ["PATH"], "BOTPOOL_DATA_DIR": str(folder)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        assert process.returncode == 2
        port = botpool.client.base_url.port
        assert said.decode() == (
            f"botpool: Can't listen on 127.0.0.1, port {port}: Address already in use;"
            " change BOTPOOL_HOST or BOTPOOL_PORT.\n"
        )


async def test_an_api_and_a_worker_share_the_work(folder: Path) -> None:
    folder.chmod(0o755)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_postgres(folder / "server"))
        api = await stack.enter_async_context(served(folder, "--role", "api", database_url=url))
        await api.ask(stayMs=10)
        assert await api.statuses() == ["QUEUED"]  # no worker has reported a host yet
        environment = {
            "PATH": os.environ["PATH"],
            "BOTPOOL_DATA_DIR": str(folder),
            "BOTPOOL_DATABASE_URL": url,
            "BOTPOOL_PUBLIC_URL": str(api.client.base_url).rstrip("/"),
        }
        worker = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "botpool"), "serve", "--role", "worker"),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await api.until(*ENDED) == {"DONE": 1}
        counts = (await api.client.get("/readyz")).json()["replicas"]
        assert counts == {"api": 1, "worker": 1}
        replicas = (await api.client.get("/api/v1/replicas")).json()["replicas"]
        assert sorted(replica["role"] for replica in replicas) == ["api", "worker"]
        worker.terminate()
        output, _ = await worker.communicate()
        assert (worker.returncode, output.decode().splitlines()[0]) == (
            0,
            "botpool is running as a worker",
        )
        counts = (await api.client.get("/readyz")).json()["replicas"]
        assert counts == {"api": 1, "worker": 0}
        assert await api.ends() == 0


async def test_a_worker_says_how_it_is_on_a_port_of_its_own(folder: Path) -> None:
    folder.chmod(0o755)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_postgres(folder / "server"))
        environment = {
            "PATH": os.environ["PATH"],
            "BOTPOOL_DATA_DIR": str(folder),
            "BOTPOOL_DATABASE_URL": url,
            "BOTPOOL_PUBLIC_URL": "http://127.0.0.1:1",
        }

        async def worker(port: str) -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).parent / "botpool"), "serve", "--role", "worker"),
                env={**environment, "BOTPOOL_HEALTH_PORT": port},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )

        first = await worker("0")
        assert first.stdout is not None
        assert await first.stdout.readline() == b"botpool is running as a worker\n"
        told = (await first.stdout.readline()).decode().split()
        address = told[-1].removesuffix("/readyz")
        async with httpx.AsyncClient(base_url=address) as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            ready = await client.get("/readyz")
            assert ready.json() == {"status": "ready", "replicas": {"api": 0, "worker": 1}}
            assert ready.headers["cache-control"] == "no-store"
            for path in (BOTS, "/docs", "/openapi.json", "/"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        port = address.rpartition(":")[2]
        second = await worker(port)
        _, said = await second.communicate()
        assert (second.returncode, said.decode()) == (
            2,
            f"botpool: Can't listen on 127.0.0.1, port {port}: Address already in use;"
            " change BOTPOOL_HOST or BOTPOOL_HEALTH_PORT.\n",
        )
        first.terminate()
        await first.communicate()
        assert first.returncode == 0
