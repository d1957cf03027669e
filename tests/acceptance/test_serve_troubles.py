"""`botpool serve` in trouble: a full disk, a dead database, a closed terminal, odd addresses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from botpool.store.postgres.embedded import embedded_postgres
from tests.support.server import BOTS, ENDED, MEET, Serve, served, started

DIED, BACK = "the embedded PostgreSQL has died", "the embedded PostgreSQL is back"
FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
async def test_a_log_that_can_t_be_written_changes_nothing(folder: Path) -> None:
    async with started(folder, settings={}, log=FULL) as botpool:
        await botpool.ask(3, stayMs=10)  # all of them are promised
        assert await botpool.until(*ENDED) == {"DONE": 3}
        assert await botpool.ends() == 0


async def test_a_killed_embedded_database_is_back_within_seconds_and_nothing_is_lost(
    folder: Path,
) -> None:
    async with served(folder) as one, served(folder) as other:
        await one.ask(stayMs=3_600_000)
        await one.until("IN_CALL")
        os.kill(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]), 9)
        made = {await created(each) for each in (one, other)}
        for each in (one, other):
            while not each.logged(BACK):
                await asyncio.sleep(0.05)
            assert (len(each.logged(DIED)), len(each.logged(BACK))) == (1, 1)
            assert each.logged(BACK)[0]["after_ms"] < 10_000
        found = {bot["id"]: bot for bot in (await one.client.get(BOTS)).json()["bots"]}
        assert {*found} == {1, *made}
        assert found[1]["status"] == "IN_CALL"
        assert await one.ends() == 0
        assert (await other.client.get("/readyz")).status_code == 200
        assert await other.ends() == 0
    assert not (folder / "postgres" / "postmaster.pid").exists()


async def created(botpool: Serve) -> int:
    """A bot that is asked for until it is promised."""
    body = {"meetingUrl": MEET, "config": {"sample": {"stayMs": 10}}}
    while (answer := await botpool.client.post(BOTS, json=body)).status_code != 201:
        assert answer.status_code == 503, answer.text
    made: int = answer.json()["bot"]["id"]
    return made


async def test_it_ends_in_order_when_its_terminal_is_closed(folder: Path) -> None:
    async with served(folder) as botpool:
        botpool.process.send_signal(signal.SIGHUP)
        assert botpool.process.stdout is not None
        assert await botpool.process.stdout.readline() == "shutting down …\n".encode()
        # A second one, as terminals send it, is none that ends it at once.
        assert await botpool.ends(signal.SIGHUP) == 0
    assert not (folder / "postgres" / "postmaster.pid").exists()


async def test_it_outlives_its_terminal_under_nohup(folder: Path) -> None:
    async with started(folder, settings={}, hang_up=signal.SIG_IGN) as botpool:
        botpool.process.send_signal(signal.SIGHUP)
        await botpool.ask(stayMs=10)
        assert await botpool.until(*ENDED) == {"DONE": 1}
        assert await botpool.ends() == 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
async def test_on_every_address_it_is_found_by_browsers_bots_and_both_kinds_of_ip(
    folder: Path,
) -> None:
    async with served(folder, host="::") as botpool:
        url = str(botpool.client.base_url).rstrip("/")
        assert url.startswith("http://[::1]:")
        port = botpool.client.base_url.port
        assert botpool.said[0] == f"botpool listens on every address of this machine, port {port}"
        await botpool.ask(stayMs=10)
        assert await botpool.until(*ENDED) == {"DONE": 1}
        async with httpx.AsyncClient() as client:
            old = f"http://127.0.0.1:{port}/healthz"
            assert (await client.get(old)).status_code == 200
        assert await botpool.ends() == 0


async def test_bots_find_it_when_it_listens_on_every_address_of_ip_4(folder: Path) -> None:
    async with served(folder, host="0.0.0.0") as botpool:  # noqa: S104
        url = str(botpool.client.base_url).rstrip("/")
        assert url.startswith("http://127.0.0.1:")
        assert botpool.said[0] == (
            "botpool listens on every IPv4 address of this machine,"
            f" port {botpool.client.base_url.port}"
        )
        await botpool.ask(stayMs=10)
        assert await botpool.until(*ENDED) == {"DONE": 1}
        assert await botpool.ends() == 0


async def test_an_engine_of_images_without_one_is_warned_of(folder: Path) -> None:
    folder.chmod(0o755)
    async with (
        embedded_postgres(folder / "server") as url,
        served(folder, "--role", "api", engine="docker", database_url=url) as botpool,
    ):
        (line,) = botpool.logged(
            "no platform has an image, so no bot can start: set BOTPOOL_IMAGE_…"
        )
        assert (line["level"], line["engine"]) == ("warning", "docker")
        assert await botpool.ends() == 0
