"""The Kubernetes under test: real nodes and pods, of which the machine notices nothing."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from testbed.docker import BOT, busybox_image
from testbed.docker import need as need_programs
from testbed.kubernetes import need
from testbed.kubernetes.joining import BUILD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.kubernetes import Cluster

MACHINE = """
import json, pathlib, psutil, subprocess, sys
from testbed.kubernetes.parts import CGROUPS, KERNEL_SETTINGS
from testbed.network import leave_machine_network

def run(command):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout

def state():
    rules = [line for line in run("iptables-save").splitlines() if not line.startswith("#")]
    kernel = [pathlib.Path("/proc/sys", name).read_text() for name in KERNEL_SETTINGS]
    return run("ip -4 -oneline address"), run("ip route"), rules, kernel

def left_of(folder):
    yield from folder.parent.glob(folder.name)
    yield from CGROUPS.glob(f"*/*{folder.name}*")
    yield from (each for each in run("cat /proc/mounts").splitlines() if str(folder) in each)
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            yield process

leave_machine_network()
run("ip link add docker0 type bridge")
run("ip address add 172.17.0.1/16 dev docker0")
run("ip link set docker0 up")
run("iptables -P FORWARD ACCEPT")
before = state()
program, locks, end = sys.argv[1:]
user = subprocess.Popen([sys.executable, "-c", program, locks], stdout=-1, stdin=-1)
assert user.stdout.readline() == b"a pod runs\\n"
assert state() == before, (before, state())
running = json.loads(pathlib.Path(locks, "running.json").read_text())
first = psutil.Process(running["pid"])
getattr(user, end)()
user.communicate()
first.wait(60)
assert state() == before, (before, state())
left = list(left_of(pathlib.Path(running["folder"])))
assert not left, left
"""
"""Be a machine that has a docker0, and look at it while a cluster runs and after its user's end."""

USER = """
import asyncio, pathlib, sys
from testbed.docker import BOT, busybox_image
from testbed.kubernetes import joined
from testbed.network import leave_machine_network
from tests.engines.test_cluster import running_pod

async def main(locks):
    async with joined(locks, nodes=1) as cluster:
        image = await cluster.push(busybox_image(locks / "bot.tar", "bot:1"), "bot:1")
        async with cluster.namespace() as namespace, running_pod(cluster, namespace, image):
            print("a pod runs", flush=True)
            await asyncio.to_thread(sys.stdin.read)

leave_machine_network()
asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@asynccontextmanager
async def running_pod(
    cluster: Cluster, namespace: str, image: str, **spec: Any
) -> AsyncIterator[dict[str, Any]]:
    """A bare pod that runs."""
    container = {
        "name": "bot",
        "image": image,
        "env": [{"name": "TEST_BEHAVIOUR", "value": "run"}],
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = {"metadata": {"generateName": "pod-"}, "spec": {"containers": [container], **spec}}
    name = (await cluster.create(path, body))["metadata"]["name"]
    pod: dict[str, Any] = {}
    while pod.get("status", {}).get("phase") != "Running":
        pod = (await cluster.api.get(f"{path}/{name}")).json()
        await asyncio.sleep(0.1)
    yield pod
    await cluster.api.delete(f"{path}/{name}", params={"gracePeriodSeconds": 0})


@pytest.mark.cluster
@pytest.mark.parametrize("end", ["communicate", "kill"])
async def test_a_cluster_leaves_the_machine_as_it_is_however_its_user_ends(
    end: str, tmp_path: Path
) -> None:
    need()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MACHINE, USER, str(tmp_path), end)
    )
    assert await process.wait() == 0


async def test_each_node_fetches_an_image_once_however_many_pods_use_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    # A layer that another image has, too, may be on a node.
    made = busybox_image(tmp_path / "a.tar", "once:1", script=f"{BOT}# once\n", padding=10**6)
    image = await cluster.push(made, "once:1")
    async with cluster.namespace() as namespace:
        for node in ("n1", "n1", "n2"):
            async with running_pod(cluster, namespace, image, nodeName=node):
                pass
    # A configuration and two layers.
    assert len(await cluster.fetches("once:1")) == 2 * 3


async def test_pods_of_a_node_that_is_cut_off_run_on(
    whole_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = whole_cluster
    image = await cluster.push(busybox_image(tmp_path / "bot.tar", "bot:1"), "bot:1")
    async with (
        cluster.namespace() as namespace,
        running_pod(cluster, namespace, image, nodeName="n2") as pod,
    ):
        await cluster.cut("n2")
        try:
            await cluster.unready("n2")
        finally:
            await cluster.mend("n2")
        await cluster.ready("n2")
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        now = (await cluster.api.get(path)).json()
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_an_api_server_that_was_away_knows_what_it_knew(whole_cluster: Cluster) -> None:
    async with whole_cluster.namespace() as namespace:
        await whole_cluster.stop_api()
        await whole_cluster.start_api()
        answer = await whole_cluster.api.get(f"/api/v1/namespaces/{namespace}")
    assert answer.is_success


@pytest.mark.parametrize(("folder", "there"), [("kubernetes-unfinished", 1), (None, 0)])
async def test_only_a_build_that_was_finished_is_used(
    folder: str | None, there: int, tmp_path: Path
) -> None:
    need_programs("busybox")
    finished = "kubernetes-1.20.5+really1.20.2-1-go1.19.8"
    (tmp_path / "botpool" / (folder or finished) / "bin").mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        *(str(BUILD), "--where"),
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "XDG_CACHE_HOME": str(tmp_path), "GOROOT": "/"},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert process.returncode == there
    assert bool(told) is not bool(there)
