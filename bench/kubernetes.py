"""The pool on a real Kubernetes: what it adds to a start, and what it asks of the API server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.engines import PLATFORM, new_bot, pool_at_work, served_site
from bench.report import Measure, Part
from botpool.engines.kubernetes.api import KubernetesApi
from botpool.engines.kubernetes.credentials import from_kubeconfig
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.models.hosts import HostReport
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, Platform
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres
from testbed.docker import busybox_image
from testbed.kubernetes import joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bench.engines import Site
    from botpool.store import Database
    from testbed.kubernetes import Cluster

WARM_ROUNDS = 15
SLOTS = 500
STARTED = 50
REST_SECONDS = 20
NODES = 5
LEAST_REQUESTS = 2
STOP_GRACE_MS = 1000
OBJECT = "botpool.example/only-an-object"

TEXT = f"""A Kubernetes 1.20 on this machine: API server, controllers, scheduler, and two nodes.
Only measured if it is named: `python -m bench kubernetes`.

- Warm: from the call of `create_bot` on an idle slot to the arrival of the pod's claim. Its limit
  is a bare pod of the same image, on the same nodes, from the call that makes it to the arrival of
  its claim. {WARM_ROUNDS} rounds.
- Many slots: pods on {NODES} nodes that are only objects, where something that is no kubelet says
  at once that they run. The reconciler has a thread of its own. At rest, for {REST_SECONDS} s, with
  {SLOTS} bots in their calls; its limit is the same with {STARTED}.
- Starts: {STARTED} bots beside {SLOTS - STARTED} others. The fewest requests that a start can be
  made of are {LEAST_REQUESTS}: its Secret and its Pod."""


def engine_on(
    cluster: Cluster, namespace: str, image: str, installation: str, **spec: Any
) -> tuple[KubernetesEngine, KubernetesApi]:
    """An engine on a namespace of the cluster, with its client."""
    api = KubernetesApi("a", from_kubeconfig(cluster.kubeconfig, None, namespace))
    template = {"spec": {"securityContext": {"runAsNonRoot": False}, **spec}}
    engine = KubernetesEngine(
        {"a": api},
        installation=installation,
        stop_grace_seconds=STOP_GRACE_MS / 1000,
        templates=dict.fromkeys(Platform, template),
        images={PLATFORM: image},
    )
    return engine, api


def settings_of(image: str, **more: Any) -> Settings:
    return Settings(
        engine="kubernetes",
        image_zoom=image,
        stop_grace_ms=STOP_GRACE_MS,
        pull_ahead=False,
        **more,
    )


# Warm starts


async def bare_start(
    cluster: Cluster, namespace: str, site: Site, image: str, number: int
) -> float:
    """The milliseconds from the call that makes a pod to the arrival of its claim."""
    path, token = f"/api/v1/namespaces/{namespace}/pods", f"bare-{number}"
    environment = {"BOTPOOL_URL": site.url, "BOTPOOL_SLOT_TOKEN": token}
    container = {
        "name": "bot",
        "image": image,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "containers": [container],
    }
    arrived = site.arrivals.claim_of(token)
    started = time.perf_counter()
    await cluster.create(path, {"metadata": {"name": token}, "spec": spec})
    took = await arrived - started
    await cluster.api.delete(f"{path}/{token}", params={"gracePeriodSeconds": 1})
    while (await cluster.api.get(f"{path}/{token}")).is_success:
        await asyncio.sleep(0.1)
    return took * 1000


async def all_run(cluster: Cluster, namespace: str) -> None:
    """Return when every pod is told to run: a kubelet can miss the end of one that just began."""
    while True:
        found = (await cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")).json()["items"]
        if all(pod["status"]["phase"] == "Running" for pod in found):
            return
        await asyncio.sleep(0.1)


async def warm(cluster: Cluster, database: Database, image: str) -> Measure:
    ours, limit = [], []
    listening = socket.create_server((cluster.address, 0))
    url = f"http://{cluster.address}:{listening.getsockname()[1]}"
    async with cluster.namespace() as namespace:
        installation = await Store(database).installation.name()
        engine, _ = engine_on(cluster, namespace, image, installation)
        settings = settings_of(image, public_url=url)
        async with served_site(database, engine, settings, listening) as site:
            for number in range(-1, WARM_ROUNDS):
                bare = await bare_start(cluster, namespace, site, image, number)
                seen = site.arrivals.count
                started = time.perf_counter()
                slot = await site.create()
                took = (await site.arrivals.until(seen + 1) - started) * 1000
                await all_run(cluster, namespace)
                await site.free_again(slot)
                if number >= 0:  # the first brings the image, and the slot
                    limit.append(bare)
                    ours.append(took)
    name = "warm: create → first claim ÷ bare pod → first claim"
    return Measure(name, "ms", ours, limit, at_most=1.3)


# Many slots


class OnlyObjects:
    """Nodes that are only objects, and something that says of their pods what a kubelet would."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = cluster.api
        self._cluster = cluster
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._names = [f"object-{number}" for number in range(NODES)]

    async def add(self) -> None:
        """Make the nodes, ready."""
        for name in self._names:
            labels = {OBJECT: "true", "kubernetes.io/hostname": name}
            await self._cluster.create(
                "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}}
            )
            room = {"cpu": "1000", "memory": "1000Gi", "pods": str(SLOTS)}
            ready = {"type": "Ready", "status": "True", "reason": "SaysSo"}
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            await self._cluster.change(f"/api/v1/nodes/{name}/status", {"status": status})

    async def remove(self) -> None:
        for name in self._names:
            await self._api.delete(f"/api/v1/nodes/{name}")

    async def keep_ready(self) -> None:
        """Renew the nodes' leases, until cancelled."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            for name in self._names:
                spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
                body = {"metadata": {"name": name}, "spec": spec}
                if (await self._api.post(path, json=body)).is_error:
                    await self._cluster.change(f"{path}/{name}", {"spec": spec})
            await asyncio.sleep(3)

    async def play_kubelet(self) -> None:
        """Let pods that have a node run, and those that are deleted end, until cancelled."""
        version = (await self._api.get(self._pods)).json()["metadata"]["resourceVersion"]
        params = {"watch": "true", "resourceVersion": version}
        async with self._api.stream("GET", self._pods, params=params, timeout=None) as answer:
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] != "DELETED" and event["object"]["spec"].get("nodeName"):
                    await self._serve(event["object"])

    async def _serve(self, pod: dict[str, Any]) -> None:
        path = f"{self._pods}/{pod['metadata']['name']}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if "deletionTimestamp" in pod["metadata"]:
            state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now}}
        else:
            state = {"running": {"startedAt": now}}
        (kind,) = state
        statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
        if kind in statuses[0]["state"]:
            return
        bot = {
            "name": "bot",
            "image": "none",
            "imageID": "none",
            "restartCount": 0,
            "ready": True,
            "state": state,
        }
        with suppress(RuntimeError):  # it is gone by now
            await self._cluster.change(
                f"{path}/status", {"status": {"phase": "Running", "containerStatuses": [bot]}}
            )


@asynccontextmanager
async def only_objects(cluster: Cluster, namespace: str) -> AsyncIterator[None]:
    nodes = OnlyObjects(cluster, namespace)
    await nodes.add()
    played = [asyncio.create_task(nodes.keep_ready()), asyncio.create_task(nodes.play_kubelet())]
    try:
        yield
    finally:
        for task in played:
            task.cancel()
        await asyncio.gather(*played, return_exceptions=True)
        await nodes.remove()


@dataclass
class Worked:
    """What the reconciler has used so far."""

    requests: int
    cpu_seconds: float


class Worker:
    """A reconciler in a thread of its own, so that its time can be told from all else."""

    def __init__(self, dsn: str, engine: KubernetesEngine, api: KubernetesApi, settings: Settings):
        self._dsn = dsn
        self._engine = engine
        self._api = api
        self._settings = settings
        self._clock = 0
        self._over = threading.Event()
        self._ready = threading.Event()

    def used(self) -> Worked:
        return Worked(self._api.requests, time.clock_gettime(self._clock))

    async def _work(self) -> None:
        async with (
            connect(self._dsn) as own,
            pool_at_work(own, Store(own), self._engine, self._settings),
        ):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self._ready.set()
            while not self._over.is_set():
                await asyncio.sleep(0.1)
        await self._engine.close()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        thread.start()
        try:
            await asyncio.to_thread(self._ready.wait)
            yield
        finally:
            self._over.set()
            await asyncio.to_thread(thread.join)

    async def rests(self) -> tuple[float, float]:
        """Requests, and milliseconds of CPU time, a second."""
        before, since = self.used(), time.perf_counter()
        await asyncio.sleep(REST_SECONDS)
        after, took = self.used(), time.perf_counter() - since
        return (
            (after.requests - before.requests) / took,
            (after.cpu_seconds - before.cpu_seconds) * 1000 / took,
        )


async def launched(store: Store, pool: Pool, count: int) -> None:
    """Create so many bots, and wait until their containers run."""
    bots = [(await pool.creation.create_bot(new_bot())).bot for _ in range(count)]
    for bot in bots:
        while (await store.bots.get(bot.id)).status is not BotStatus.JOINING_CALL:
            await asyncio.sleep(0.02)


async def many(
    cluster: Cluster, dsn: str, database: Database, say: Callable[[str], None]
) -> list[Measure]:
    store = Store(database)
    image = f"{cluster.registry}/none:1"
    settings = settings_of(image, max_pool_size=SLOTS, public_url="http://127.0.0.1:9")
    pool = Pool(store, settings)
    await pool.queue.configure()
    await pool.hosts.report("kubernetes", [HostReport(host="a", capacity=None, open=True)])
    async with cluster.namespace() as namespace, only_objects(cluster, namespace):
        installation = await store.installation.name()
        engine, api = engine_on(
            *(cluster, namespace, image, installation),
            nodeSelector={OBJECT: "true"},
        )
        worker = Worker(dsn, engine, api, settings)
        async with worker.at_work():
            await launched(store, pool, STARTED)
            say(f"{STARTED} bots at rest")
            few = await worker.rests()
            await launched(store, pool, SLOTS - 2 * STARTED)
            say(f"{STARTED} starts beside {SLOTS - STARTED} bots")
            await asyncio.sleep(2)
            before, since = worker.used(), time.perf_counter()
            await launched(store, pool, STARTED)
            after, took = worker.used(), time.perf_counter() - since
            say(f"{STARTED} bots ran after {took:.1f} s; {SLOTS} bots at rest")
            full = await worker.rests()
    requests = (after.requests - before.requests) / STARTED
    cpu = (after.cpu_seconds - before.cpu_seconds) * 1000 / STARTED
    return [
        Measure(
            f"at rest: requests with {SLOTS} bots ÷ with {STARTED}",
            *("requests/s", [full[0]], [few[0]]),
            at_most=1.5,
        ),
        Measure(f"at rest: CPU with {SLOTS} bots ÷ with {STARTED}", "ms/s", [full[1]], [few[1]]),
        Measure("starts: requests a bot ÷ the fewest", "requests", [requests], [LEAST_REQUESTS]),
        Measure(f"starts: CPU a bot ÷ a second at rest with {SLOTS}", "ms", [cpu], [full[1]]),
    ]


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with joined(folder / "locks") as cluster:
        image = await cluster.push(busybox_image(folder / "bot.tar", "bot:1"), "bot:1")
        say("warm starts on Kubernetes")
        async with embedded_postgres(folder / "warm") as dsn, connect(dsn) as database:
            await migrate(database)
            measures = [await warm(cluster, database, image)]
        say(f"{SLOTS} slots on Kubernetes")
        async with embedded_postgres(folder / "many") as dsn, connect(dsn) as database:
            await migrate(database)
            measures += await many(cluster, dsn, database, say)
    return Part("Kubernetes", TEXT, measures)
