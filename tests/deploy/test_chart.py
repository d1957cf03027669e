"""The chart, installed by Helm on a real cluster: botpool runs there, and a bot through a roll."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool import __version__
from testbed.docker import docker_daemon
from testbed.docker import need as need_programs
from testbed.image import botpool_image, docker, need_packages
from testbed.kubernetes import need
from tests.engines.conftest import short_folder
from tests.support.helm import CHART, FOLDER, environment, run
from tests.support.postgres import socket_folder
from tests.support.server import BOTS, MEET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from testbed.kubernetes import Cluster

KEY = "a-key-that-an-operator-thought-up"
WORKERS = "app.kubernetes.io/component=worker"
REPLICAS = 2
SAMPLE = {
    "spec": {
        "securityContext": {"runAsUser": 10001},
        "containers": [{"name": "bot", "command": ["python3", "-m", "botpool.bot.sample"]}],
    }
}


@pytest.fixture(scope="module")
async def image(kubernetes: Cluster) -> str:
    """The name of botpool's image in the cluster's registry."""
    need()
    need_programs("dockerd", "docker", "runc")
    need_packages()
    with short_folder() as folder:
        async with docker_daemon(folder / "docker") as daemon:
            await botpool_image(daemon, folder, "botpool:1")
            await docker(daemon, "save", "--output", str(folder / "image.tar"), "botpool:1")
        return await kubernetes.push(folder / "image.tar", "botpool:1")


@asynccontextmanager
async def forwarded(address: str, socket: str) -> AsyncIterator[int]:
    """A port of this address that leads to a unix socket."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async with await asyncio.start_server(serve, address, 0) as server:
        yield server.sockets[0].getsockname()[1]


async def until(look: Callable[[], Any]) -> Any:
    """What a look finds, once it finds something."""
    while not (found := await look()):
        await asyncio.sleep(0.2)
    return found


async def test_a_node_runs_botpools_image_as_the_level_restricted_wants(
    cluster: Cluster, image: str
) -> None:
    container = {
        "name": "botpool",
        "image": image,
        "args": ["--version"],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
        "containers": [container],
    }
    async with cluster.namespace() as namespace:
        path = f"/api/v1/namespaces/{namespace}/pods"
        await cluster.create(path, {"metadata": {"name": "version"}, "spec": spec})

        async def ended() -> Any:
            pod = (await cluster.api.get(f"{path}/version")).json()
            statuses = pod["status"].get("containerStatuses", [{"state": {}}])
            return statuses[0]["state"].get("terminated")

        assert (await until(ended))["exitCode"] == 0
        log = await cluster.api.get(f"{path}/version/log")
    assert log.text.strip() == __version__


async def test_a_bot_runs_through_an_upgrade_of_the_chart_that_it_does_not_notice(
    cluster: Cluster, image: str, database_url: str
) -> None:
    socket = f"{socket_folder(database_url)}/.s.PGSQL.5432"
    name = database_url.partition("?")[0].rpartition("/")[2]
    async with (
        cluster.namespace() as namespace,
        forwarded(cluster.address, socket) as port,
    ):

        async def kubectl(*arguments: str) -> str:
            return await run("kubectl", "--namespace", namespace, *arguments, cluster=cluster)

        async def helm(verb: str, *options: str) -> None:
            await run(
                *("helm", verb, "botpool", str(CHART), "--namespace", namespace, "--wait"),
                *("--timeout", "8m", "--set", f"image={image}", "--set", "service.type=NodePort"),
                *("--set", f"bots.images.googleMeet={image}"),
                *("--set-json", f"bots.podTemplate={json.dumps(SAMPLE)}"),
                *("--set", "api.resources=null", "--set", "worker.resources=null", *options),
                cluster=cluster,
            )

        url = f"postgresql://postgres@{cluster.address}:{port}/{name}?sslmode=disable"
        await kubectl(
            *("create", "secret", "generic", "botpool"),
            *(f"--from-literal=database-url={url}", f"--from-literal=admin-key={KEY}"),
        )
        await helm("install")
        service = json.loads(await kubectl("get", "service", "botpool", "--output", "json"))["spec"]
        # There is no DNS in this cluster.
        reachable = ("--set", f"publicUrl=http://{service['clusterIP']}:8000")
        await helm("upgrade", *reachable)
        await old_workers_gone(kubectl)

        base = f"http://10.213.0.11:{service['ports'][0]['nodePort']}"
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=30) as api:
            config = {"sample": {"stayMs": 3_600_000}}
            made = await api.post(BOTS, json={"meetingUrl": MEET, "config": config})
            assert made.status_code == 201, made.text
            path = f"{BOTS}/{made.json()['bot']['id']}"

            async def status() -> str:
                found = await api.get(path)
                return str(found.json()["status"]) if found.is_success else ""

            async def in_call() -> bool:
                now = await status()
                assert now not in {"FATAL", "CANCELLED"}, now
                return now == "IN_CALL"

            await until(in_call)
            pod = await told_to_run(kubectl)
            eviction = await cluster.api.post(
                f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/eviction",
                json={
                    "apiVersion": "policy/v1beta1",
                    "kind": "Eviction",
                    "metadata": {"name": pod["metadata"]["name"], "namespace": namespace},
                },
            )
            assert eviction.status_code == 429, eviction.text

            seen = asyncio.create_task(watch(api, path))
            await helm("upgrade", *reachable, "--set", "podAnnotations.rolled=once")
            seen.cancel()
            with suppress(asyncio.CancelledError):
                await seen
            assert await in_call()
            again = json.loads(await bots(kubectl))["items"]
            assert [each["metadata"]["uid"] for each in again] == [pod["metadata"]["uid"]]

            worker = "deployment/botpool-worker"
            told = await kubectl("exec", worker, "--", "botpool", "doctor", "--probe", "--json")
            found = json.loads(told)
            assert [each for each in found if each["result"] == "problem"] == []
            assert "way to botpool" in {each["check"] for each in found}

            await api.post(f"{path}/stop")

            async def done() -> bool:
                return await status() == "DONE"

            async def gone() -> bool:
                return not json.loads(await bots(kubectl))["items"]

            await until(done)
            await until(gone)
        await uninstall(cluster, namespace, kubectl)


async def uninstall(cluster: Cluster, namespace: str, kubectl: Callable[..., Any]) -> None:
    """Do as docs/how-to/kubernetes.md says. Nothing of botpool's is left."""
    async with port_forwarded(cluster, namespace) as url:
        await botpool(url, "hosts", "drain", "kubernetes", "in-cluster")
        await botpool(url, "bots", "list", "--live")
    await run("helm", "uninstall", "botpool", "--namespace", namespace, cluster=cluster)
    ours = ("--selector", "app.kubernetes.io/managed-by=botpool")
    await kubectl("delete", "secrets,daemonsets", *ours)

    async def nothing_left() -> bool:
        left = await kubectl("get", "pods,secrets,daemonsets", *ours, "--output=json")
        return not json.loads(left)["items"]

    await until(nothing_left)


@asynccontextmanager
async def port_forwarded(cluster: Cluster, namespace: str) -> AsyncIterator[str]:
    """The address at which `kubectl` has botpool's service."""
    process = await asyncio.create_subprocess_exec(
        *(str(FOLDER / "kubectl"), "--namespace", namespace),
        *("port-forward", "service/botpool", ":8000"),
        env=environment(cluster),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline()).decode()
        yield f"http://{said.removeprefix('Forwarding from ').split()[0]}"
    finally:
        process.terminate()
        await process.wait()


async def botpool(url: str, *command: str) -> None:
    """Run a command of botpool's against a server."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), *command),
        env={"PATH": os.environ["PATH"], "BOTPOOL_URL": url, "BOTPOOL_API_KEY": KEY},
    )
    assert await process.wait() == 0, command


async def old_workers_gone(kubectl: Callable[..., Any]) -> None:
    """Wait until only workers with the new settings are left: others know another URL for bots."""

    async def gone() -> bool:
        workers = await kubectl("get", "pods", "--selector", WORKERS, "--output", "name")
        return len(workers.split()) == REPLICAS

    await until(gone)


async def told_to_run(kubectl: Callable[..., Any]) -> Any:
    """The pod of the one bot, once the cluster tells that it runs.

    One that is told to be pending is evicted whatever its budget says.
    """

    async def running() -> Any:
        (found,) = json.loads(await bots(kubectl))["items"]
        return found if found["status"]["phase"] == "Running" else None

    return await until(running)


async def bots(kubectl: Callable[..., Any]) -> str:
    """The pods of bots, as JSON."""
    told: str = await kubectl(
        *("get", "pods", "--selector", "app.kubernetes.io/name=botpool-bot", "--output", "json")
    )
    return told


async def watch(api: httpx.AsyncClient, path: str) -> None:
    """Ask for a bot again and again. Each answer must be there, and the bot in its call."""
    while True:
        answer = await api.get(path)
        assert answer.is_success, answer.text
        assert answer.json()["status"] == "IN_CALL"
        await asyncio.sleep(0.1)
