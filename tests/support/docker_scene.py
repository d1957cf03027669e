"""What the tests of the docker engine share."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.container_file import DockerOptions
from botpool.engines.base import Container, ContainerSpec
from botpool.engines.docker.engine import DockerEngine
from botpool.states import Platform
from testbed.docker import BOT_IMAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from botpool.engines.base import Engine
    from testbed.docker import Daemon


def spec(name: str, behaviour: str = "run", **changes: Any) -> ContainerSpec:
    fields: dict[str, Any] = {
        "host": "a",
        "name": name,
        "slot_id": 7,
        "slot_name": "pool-zoom-007",
        "platform": Platform.ZOOM,
        "image": BOT_IMAGE,
        "environment": {"TEST_BEHAVIOUR": behaviour},
    }
    return ContainerSpec(**{**fields, **changes})


def made_with(**keys: Any) -> dict[Platform, DockerOptions]:
    """Options for every platform, on the network of the machine unless they say otherwise."""
    return dict.fromkeys(Platform, DockerOptions(**{"network": "host", **keys}))


@asynccontextmanager
async def opened(
    daemon: Daemon,
    *,
    options: Mapping[Platform, DockerOptions] | None = None,
    never_pulled: Collection[str] = (),
    **keys: Any,
) -> AsyncIterator[DockerEngine]:
    """An engine of another installation than the one that the tests share.

    Its containers are made with these options, or else with these keys.
    """
    engine = DockerEngine(
        {"a": daemon.address},
        installation="other",
        options=options or made_with(**keys),
        never_pulled=never_pulled,
    )
    try:
        yield engine
    finally:
        for listed in await engine.list("a"):
            await engine.stop(listed.container, 0)
            await engine.remove(listed.container)
        await engine.close()


async def started(engine: Engine, spec: ContainerSpec) -> Container:
    container = Container(spec.host, await engine.create(spec))
    await engine.start(container, {})
    return container


async def inspected(daemon: Daemon, name: str) -> dict[str, Any]:
    async with daemon.client() as client:
        return await client.containers.container(name).show()


async def until_said(daemon: Daemon, name: str, word: str) -> None:
    async with daemon.client() as client:
        url = f"{client.docker_host}/containers/{name}/logs"
        async with client.session.get(url, params={"stdout": "1", "follow": "1"}) as answer:
            async for line in answer.content:
                if word.encode() in line:
                    return
    pytest.fail(f"{name} ended before it said {word}")


async def until_over(daemon: Daemon, name: str) -> None:
    async with daemon.client() as client:
        await client.containers.container(name).wait()


@asynccontextmanager
async def web_server(
    app: web.Application, *, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[str]:
    """The address at which the app answers."""
    runner = web.AppRunner(app, **options)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0)
        await site.start()
        yield "http://{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()
