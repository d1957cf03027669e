"""Where the docker engine finds its hosts, and what it makes of one that isn't there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiodocker.docker
import pytest
from aiohttp import web

from botpool.engines.base import Container, ContainerState
from botpool.engines.docker.engine import DockerEngine, docker_hosts
from botpool.errors import EngineRefused, EngineUnavailable, SettingsInvalid
from testbed.docker import BOT_IMAGE, Daemon, busybox_image, docker_daemon, load, need
from tests.support.docker_scene import made_with, spec, started, web_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("setting", "hosts"),
    [
        (None, {"local": None}),
        ("unix:///run/docker.sock", {"local": "unix:///run/docker.sock"}),
        (
            "tcp://10.0.0.2:2376, big=tcp://10.0.0.3:2376",
            {"10.0.0.2": "tcp://10.0.0.2:2376", "big": "tcp://10.0.0.3:2376"},
        ),
        (
            "a=unix:///a=b.sock,unix:///c=d.sock",
            {"a": "unix:///a=b.sock", "local": "unix:///c=d.sock"},
        ),
        ("http://proxy/docker", {"proxy": "http://proxy/docker"}),
    ],
)
def test_the_setting_names_hosts(setting: str | None, hosts: dict[str, str | None]) -> None:
    assert docker_hosts(setting) == hosts


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "somewhere",
        "a=",
        "=tcp://10.0.0.2:2376",
        "unix://run/docker.sock",
        "ssh://me@10.0.0.2",
        "tcp://10.0.0.2",
        "tcp://10.0.0.2:port",
        "tcp://me:secret@10.0.0.2:2376",
        "tcp://10.0.0.2:2376,",
        "tcp://10.0.0.2:2375,tcp://10.0.0.2:2376",
        "a=tcp://10.0.0.2:2376,a=tcp://10.0.0.3:2376",
    ],
)
def test_a_setting_that_makes_no_sense_is_said_to_be_mended(setting: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"^Entry \d of BOTPOOL_DOCKER_HOSTS .*\.$") as raised:
        docker_hosts(setting)
    assert "secret" not in str(raised.value)


async def test_hosts_are_apart_and_one_that_is_down_is_not_empty(
    docker: Daemon, folder: Path
) -> None:
    async with docker_daemon(folder / "docker") as second:
        await load(second, busybox_image(folder / "bot.tar", BOT_IMAGE))
        hosts = {"a": docker.address, "b": second.address}
        engine = DockerEngine(hosts, installation="apart", options=made_with())
        assert engine.hosts() == ("a", "b")
        container = await started(engine, spec("apart", host="b"))
        assert [listed.container for listed in await engine.list("b")] == [container]
        assert await engine.list("a") == []
        elsewhere = await engine.observe(Container("a", "apart"))
        assert elsewhere.state is ContainerState.MISSING
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.list("b"),
        lambda: engine.observe(container),
        lambda: engine.start(container, {}),
        lambda: engine.stop(container, 1),
        lambda: engine.remove(container),
        lambda: engine.logs(container, 1),
        lambda: engine.create(spec("apart", host="b")),
        lambda: engine.pull("b", BOT_IMAGE, print),
        lambda: engine.list("c"),
    ]
    for call in calls:
        with pytest.raises(EngineUnavailable):
            await call()
    assert await engine.list("a") == []
    await engine.close()


async def test_the_default_is_where_docker_itself_looks(
    docker: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_HOST", docker.address)
    engine = DockerEngine(docker_hosts(None), installation="default")
    assert await engine.list("local") == []
    await engine.close()
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setattr(aiodocker.docker, "_sock_search_paths", [])
    with pytest.raises(EngineUnavailable, match="BOTPOOL_DOCKER_HOSTS"):
        await engine.list("local")


async def test_what_is_not_docker_is_not_believed() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with web_server(app) as url:
        engine = DockerEngine({"a": url}, installation="other")
        with pytest.raises(EngineUnavailable):
            await engine.list("a")
        await engine.close()


async def test_tcp_is_tls_with_the_certificates_of_docker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_certificates(folder)
    options = [f"--{name}={folder}/{file}.pem" for name, file in TLS_FILES.items()]
    listen = ("--tlsverify", *options, "--host", "tcp://127.0.0.1:0")
    async with docker_daemon(folder / "docker", None, *listen) as daemon:
        address = (await daemon.output.said(r"API listen on (127\.0\.0\.1:\d+)"))[1]
        hosts = docker_hosts(f"tcp://{address}")
        engine = DockerEngine(hosts, installation="other")
        with pytest.raises(EngineRefused):
            await engine.list("127.0.0.1")
        await engine.close()
        monkeypatch.setenv("DOCKER_CERT_PATH", str(folder))
        assert await engine.list("127.0.0.1") == []
        await engine.close()


TLS_FILES = {"tlscacert": "ca", "tlscert": "server", "tlskey": "server-key"}


async def make_certificates(folder: Path) -> None:
    """A certificate that signs itself, for both ends, in files named as Docker's client wants."""
    need("openssl")
    process = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-days", "1", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    for name, file in {"ca": "cert", "server": "cert", "server-key": "key"}.items():
        (folder / f"{name}.pem").write_bytes((folder / f"{file}.pem").read_bytes())
