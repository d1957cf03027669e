"""A real browser as a bot of the process engine."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from aiohttp import web

from botpool.engines.base import Container, ContainerSpec, ContainerState
from botpool.engines.process.engine import ProcessEngine
from botpool.states import Platform
from tests.support.docker_scene import web_server
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOT = """
echo $TMPDIR
exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic \
  --no-first-run --disable-sync --disable-background-networking --disable-component-update \
  --user-data-dir="$HOME/profile" "$PAGE"
"""
PAGE = "<script>fetch('/ran', {method: 'POST', body: navigator.userAgent})</script>"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A folder that is so deep that a socket below it would have too long a name."""
    return tmp_path / ("d" * 100)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[ProcessEngine]:
    if shutil.which("chromium") is None:
        pytest.skip("needs a browser: apt-get install chromium fonts-dejavu-core")
    engine = ProcessEngine(folder, ["/bin/sh", "-c", BOT])
    yield engine
    for found in await engine.list(engine.hosts()[0]):
        await engine.stop(found.container, 0)
    await engine.close()


async def test_a_browser_runs_as_a_bot_and_nothing_of_it_is_left(
    engine: ProcessEngine, folder: Path
) -> None:
    ran: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def told(request: web.Request) -> web.Response:
        ran.set_result(await request.text())
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", page), web.post("/ran", told)])
    async with web_server(app) as url:
        spec = ContainerSpec(
            host=engine.hosts()[0],
            name="pool-google-meet-001-abcdef",
            slot_id=1,
            slot_name="pool-google-meet-001",
            platform=Platform.GOOGLE_MEET,
            image=None,
            environment={"PAGE": f"{url}/"},
        )
        container = Container(spec.host, await engine.create(spec))
        leader = psutil.Process(int(await engine.start(container, {})))
        while not ran.done():
            state = (await engine.observe(container)).state
            assert state is ContainerState.RUNNING, await engine.logs(container, 20)
            await a_moment()
    assert "Chrome" in ran.result()
    family = leader.children(recursive=True)
    assert len(family) > 3
    temporary = Path((await engine.logs(container, 1000))[0])
    assert list(temporary.glob("*/SingletonSocket"))

    await engine.stop(container, 10)
    assert (await engine.observe(container)).state is ContainerState.EXITED
    assert not [process for process in (leader, *family) if process.is_running()]
    assert not temporary.exists()
    await engine.remove(container)
    assert [path.name for path in folder.iterdir()] == [".host"]
