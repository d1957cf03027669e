"""Real proxies, set up by the files of deploy/proxy, before two replicas of botpool."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from testbed.docker import need, server_program
from testbed.image import run
from tests.support.docker_ground import free_port
from tests.support.server import BOTS, MEET, served
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.server import Serve

FILES = Path(__file__).parents[2] / "deploy" / "proxy"

_NGINX = """
daemon off;
user root;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""


@dataclass(frozen=True)
class Proxied:
    """Two replicas, and the two addresses at which a proxy has them: with TLS, and for bots."""

    replicas: tuple[Serve, Serve]
    url: str
    plain_url: str
    certificate: Path

    def client(self, **headers: str) -> httpx.AsyncClient:
        """Somebody who reaches botpool through the proxy."""
        trusting = ssl.create_default_context(cafile=str(self.certificate))
        return httpx.AsyncClient(base_url=self.url, headers=headers, verify=trusting, timeout=60)


def _nginx(folder: Path, addresses: list[str], tls: int, plain: int) -> list[str]:
    site = (FILES / "nginx.conf").read_text()
    for old, new in {
        "127.0.0.1:8001": addresses[0],
        "127.0.0.1:8002": addresses[1],
        "listen 443 ssl http2;": f"listen 127.0.0.1:{tls} ssl http2; listen 127.0.0.1:{plain};",
        "/etc/ssl/botpool": f"{folder}/botpool",
    }.items():
        assert old in site
        site = site.replace(old, new)
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, site=site))
    return ["nginx", "-c", str(folder / "nginx.conf")]


def _caddy(folder: Path, addresses: list[str], tls: int, plain: int) -> list[str]:
    site = (FILES / "Caddyfile").read_text()
    for old, new in {
        "127.0.0.1:8001": addresses[0],
        "127.0.0.1:8002": addresses[1],
        "botpool.example {": "{\n\tadmin off\n\tauto_https disable_redirects\n}\n(botpool) {",
    }.items():
        assert old in site
        site = site.replace(old, new)
    own = f"tls {folder}/botpool.crt {folder}/botpool.key"
    site += f"http://127.0.0.1:{plain} {{\n\timport botpool\n}}\n"
    site += f"https://127.0.0.1:{tls} {{\n\t{own}\n\timport botpool\n}}\n"
    (folder / "Caddyfile").write_text(site)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROGRAMS = {
    "nginx": (_nginx, "start worker processes"),
    "caddy": (_caddy, "serving initial configuration"),
}


@asynccontextmanager
async def proxied(program: str, folder: Path, **settings: str) -> AsyncIterator[Proxied]:
    """Two replicas on one database, behind a proxy that bots use, too."""
    need(program, "openssl")
    configure, ready = PROGRAMS[program]
    tls, plain = free_port(), free_port()
    files = folder / "proxy"
    files.mkdir()
    await run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "1", "-subj", "/CN=botpool", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(files / "botpool.key"), "-out", str(files / "botpool.crt")),
    )
    plain_url = f"http://127.0.0.1:{plain}"
    common = {"public_url": plain_url, "trusted_proxies": "127.0.0.1", **settings}
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(served(folder, **common))
        two = await stack.enter_async_context(served(folder, "--stop-bots", **common))
        addresses = [str(each.client.base_url.netloc, "ascii") for each in (one, two)]
        command = configure(files, addresses, tls, plain)
        home = {"HOME": str(files)}
        output = await stack.enter_async_context(server_program(files, *command, environment=home))
        await output.said(ready)
        url = f"https://127.0.0.1:{tls}"
        yield Proxied((one, two), url, plain_url, files / "botpool.crt")
        await two.ends()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("prefix", ["", "/botpool"], ids=["root", "below-a-path"])
async def test_a_page_a_stream_and_a_bot_go_through_a_proxy(
    folder: Path, program: str, prefix: str
) -> None:
    async with proxied(program, folder, path_prefix=prefix) as site:
        key = site.replicas[0].key
        async with site.client() as browser, site.client(Authorization=f"Bearer {key}") as caller:
            made = await caller.post(f"{prefix}/api/v1/sessions")
            link = made.json()["url"]
            assert link.startswith(f"{site.url}{prefix}/sign-in?code=")
            signed = await browser.get(link)
            assert "; secure" in signed.headers["set-cookie"].lower()
            page = await browser.get(signed.headers["location"])
            assert page.status_code == 200
            style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
            assert style.startswith(f"{prefix}/assets/")
            assert (await browser.get(style)).status_code == 200
            # The browser's own origin is known as such: so the proxy has passed it on.
            paused = await browser.post(f"{prefix}/pools/zoom/pause", headers={"Origin": site.url})
            assert paused.status_code == 303

            async with browser.stream("GET", f"{prefix}/api/v1/stream") as stream:
                lines = stream.aiter_lines()
                body = {"meetingUrl": MEET, "config": {"sample": {"stayMs": 100}}}
                created = await caller.post(f"{prefix}{BOTS}", json=body)
                assert created.status_code == 201
                found = [status async for status in _statuses(lines)]
            assert found[-2:] == ["LEAVING", "DONE"]
            assert "IN_CALL" in found


async def _statuses(lines: Any) -> AsyncIterator[str]:
    """The statuses of bots that a stream tells, until one has ended."""
    async for line in lines:
        if line.startswith("data:"):
            event = json.loads(line.removeprefix("data:"))
            if event["type"] == "bot.status_changed":
                yield event["data"]["status"]
                if event["data"]["status"] == "DONE":
                    return


@pytest.mark.parametrize("program", PROGRAMS)
async def test_callers_and_bots_notice_nothing_when_a_replica_ends(
    folder: Path, program: str
) -> None:
    async with proxied(program, folder) as site:
        one, two = site.replicas
        async with site.client(Authorization=f"Bearer {one.key}") as caller:
            bot = (await caller.post(BOTS, json=_staying())).json()["bot"]["id"]
            while (await caller.get(f"{BOTS}/{bot}")).json()["status"] != "IN_CALL":
                await a_moment()
            over = asyncio.Event()
            calling = [asyncio.create_task(_call(site, one.key, over)) for _ in range(4)]
            assert await one.ends() == 0
            # As many again, of which none finds the replica that is gone.
            for _ in range(20):
                assert (await caller.get(BOTS)).status_code == 200
            over.set()
            answers = [status for each in await asyncio.gather(*calling) for status in each]
            assert set(answers) == {200}
            seen = (await caller.get(f"{BOTS}/{bot}")).json()
            assert (seen["status"], seen["launchAttempts"]) == ("IN_CALL", 1)
            at = seen["lastHeartbeat"]
            while (await two.client.get(f"{BOTS}/{bot}")).json()["lastHeartbeat"] == at:
                await a_moment()


def _staying() -> dict[str, Any]:
    return {"meetingUrl": MEET, "config": {"sample": {"stayMs": 3_600_000}}}


async def _call(site: Proxied, key: str, over: asyncio.Event) -> list[int]:
    answers = []
    async with site.client(Authorization=f"Bearer {key}") as caller:
        while not over.is_set():
            answers.append((await caller.get("/api/v1/pool")).status_code)
    return answers
