"""What happens to a bot's pod on a real cluster, and what a person is told of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from botpool.states import BotStatus, FailureCause, SlotStatus
from tests.conftest import new_database
from tests.support.helm import run
from tests.support.kubernetes_engine import ROOT
from tests.support.kubernetes_ground import TEAMS, ZOOM, ground, processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from testbed.kubernetes import Cluster
    from tests.support.kubernetes_ground import Ground

    Fault = Callable[[Ground, Slot], Awaitable[object]]

SEAT = "botpool.example/seat"
"""Something that nodes have as much of as a test says."""
LIMITED: dict[str, Any] = {
    "spec": {
        **ROOT["spec"],
        "volumes": [{"name": "recordings", "emptyDir": {"sizeLimit": "4Mi"}}],
        "containers": [
            {
                "name": "bot",
                "resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "1Mi"}},
                "volumeMounts": [{"name": "recordings", "mountPath": "/recordings"}],
            }
        ],
    }
}


def seated(seats: int) -> dict[str, Any]:
    """A template of pods that need so many seats."""
    container = {"name": "bot", "resources": {"limits": {SEAT: str(seats)}}}
    return {"spec": {**ROOT["spec"], "containers": [container]}}


async def delete(here: Ground, slot: Slot) -> None:
    await here.cluster.api.delete(here.path("pods", slot.container_ref or ""))


async def force(here: Ground, slot: Slot) -> None:
    path = here.path("pods", slot.container_ref or "")
    await here.cluster.api.delete(path, params={"gracePeriodSeconds": 0})


async def take_finalizer_off(here: Ground, slot: Slot) -> None:
    path = here.path("pods", slot.container_ref or "")
    await here.cluster.change(path, {"metadata": {"finalizers": None}})
    await here.cluster.api.delete(path, params={"gracePeriodSeconds": 0})


async def delete_secret(here: Ground, slot: Slot) -> None:
    await here.cluster.api.delete(here.path("secrets", slot.container_ref or ""))


async def evict(here: Ground, slot: Slot) -> None:
    name = slot.container_ref or ""
    body = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": here.namespace},
    }
    await here.cluster.create(f"{here.path('pods', name)}/eviction", body)


async def drain(here: Ground, slot: Slot) -> None:
    pod = (await here.objects())[slot.container_ref or ""]
    labels = pod["metadata"]["labels"]
    chosen = ",".join(
        f"{name}={labels[name]}" for name in ("botpool/installation", "botpool/slot-id")
    )
    options = ("--force", "--delete-emptydir-data", f"--pod-selector={chosen}")
    node = pod["spec"]["nodeName"]
    try:
        await run("kubectl", "drain", node, *options, cluster=here.cluster)
    finally:
        await run("kubectl", "uncordon", node, cluster=here.cluster)


async def nothing(_here: Ground, _slot: Slot) -> None:
    """The bot itself is the trouble."""


DELETED = "its pod was deleted, as a person, a drain or an eviction does it"
FAULTS: dict[str, tuple[Fault, dict[str, Any], FailureCause, str]] = {
    "deleted": (delete, {}, FailureCause.CRASHED, DELETED),
    "forced": (force, {}, FailureCause.CRASHED, DELETED),
    "evicted": (evict, {}, FailureCause.CRASHED, DELETED),
    "drained": (drain, {}, FailureCause.CRASHED, DELETED),
    "no Secret": (
        *(delete_secret, {}, FailureCause.CRASHED),
        f"its Secret was deleted by somebody; {DELETED}",
    ),
    "no finalizer": (
        *(take_finalizer_off, {}, FailureCause.HEARTBEAT_LOST),
        "its pod is gone: somebody deleted it and took botpool's finalizer off",
    ),
    "no memory": (
        *(nothing, {"do": "use memory"}, FailureCause.CRASHED),
        "it used more memory than it may have: OOMKilled",
    ),
}
"""What is done to a bot in its call or by it, the cause of its end, and words of the reason."""


def told(bot: Bot, cause: FailureCause, words: str) -> None:
    """The bot has failed, and whoever reads why understands it."""
    assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, cause)
    assert words in (bot.failure_reason or "")


async def ends_as_told(here: Ground, name: str) -> None:
    """A bot in its call meets a fault."""
    fault, config, cause, words = FAULTS[name]
    bot = await here.ask(config=config)
    if fault is not nothing:
        await here.in_meeting(bot)
        slot = await here.slot_of(bot)
        # Botpool has seen on which node it is, so that what is gone is not taken for never there.
        while (await here.store.slots.get(slot.id)).node is None:
            await asyncio.sleep(0.1)
        await fault(here, slot)
    told(await here.ended(bot), cause, words)
    if name == "no finalizer":
        assert "given up, not proved stopped" in await here.why_deleted(slot.id)


async def never_starts(here: Ground, url: str, cause: FailureCause, *words: str) -> str:
    """A bot whose pod can't start. The name of its pod, with which kubelets may take a minute."""
    found = await here.ended(await here.ask(url))
    for each in words:
        told(found, cause, each)
    return found.container_ref or ""


async def evicted_by_its_node(here: Ground) -> str:
    """A bot writes too much. The name of its pod, of whose end kubelets of 1.20 say nothing."""
    bot = await here.ask(config={"do": "write too much"})
    slot = await here.slot_of(bot)
    found = await here.ended(bot)
    words = 'it was evicted by its node: Usage of EmptyDir volume "recordings" exceeds the limit'
    told(found, FailureCause.CRASHED, words)
    assert "given up, not proved stopped" in await here.why_deleted(slot.id)
    return found.container_ref or ""


async def keeps_its_slot_until_it_is_dead(here: Ground) -> None:
    """A bot doesn't listen to SIGTERM, and is killed after its grace."""
    bot = await here.ask(config={"do": "refuse to end"})
    while (await here.store.bots.get(bot)).status is not BotStatus.IN_CALL:
        await asyncio.sleep(0.1)
    slot = await here.slot_of(bot)
    await here.serve.client.post(f"/api/v1/bots/{bot}/stop")
    asked, statuses = False, set()
    while processes(slot.container_ref or ""):
        pod = (await here.objects()).get(slot.container_ref or "") or {"metadata": {}}
        found = await here.store.slots.get(slot.id)
        if processes(slot.container_ref or ""):
            statuses.add(found.status)
            asked |= "deletionTimestamp" in pod["metadata"]
    assert asked
    assert statuses <= {SlotStatus.BUSY, SlotStatus.RELEASING}
    # Its lines are kept before the slot is another bot's.
    await here.until_slot(
        slot.id, lambda found: found is not None and found.status is SlotStatus.IDLE
    )
    logs = (await here.serve.client.get(f"/api/v1/bots/{bot}/logs")).json()
    assert "not yet" in str(logs["container"]), logs


@asynccontextmanager
async def seats(cluster: Cluster, count: int) -> AsyncIterator[None]:
    """Each node has so many seats."""
    for node in ("n1", "n2"):
        await cluster.change(
            f"/api/v1/nodes/{node}/status", {"status": {"capacity": {SEAT: str(count)}}}
        )
    try:
        yield
    finally:
        for node in ("n1", "n2"):
            await cluster.change(
                f"/api/v1/nodes/{node}/status",
                {"status": {"capacity": {SEAT: None}, "allocatable": {SEAT: None}}},
            )


@asynccontextmanager
async def priority(cluster: Cluster) -> AsyncIterator[str]:
    """The name of a priority above that of bots."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await cluster.create(path, {"metadata": {"name": "above-bots"}, "value": 1000})
    try:
        yield "above-bots"
    finally:
        await cluster.api.delete(f"{path}/above-bots")


async def preempted(here: Ground, above: str) -> None:
    """A pod of a higher priority takes the seat of a bot."""
    bot = await here.ask()
    await here.in_meeting(bot)
    pods = await here.objects()
    pod = pods[(await here.slot_of(bot)).container_ref or ""]
    container = {
        "name": "other",
        "image": pod["spec"]["containers"][0]["image"],
        "resources": {"limits": {SEAT: "1"}},
    }
    spec = {
        "priorityClassName": above,
        "nodeSelector": {"kubernetes.io/hostname": pod["spec"]["nodeName"]},
        # That node may just be drained.
        "tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
        "containers": [container],
    }
    await here.cluster.create(here.path("pods"), {"metadata": {"name": "other"}, "spec": spec})
    words = "it was preempted by a pod of a higher priority"
    told(await here.ended(bot), FailureCause.CRASHED, words)
    await here.cluster.api.delete(here.path("pods", "other"), params={"gracePeriodSeconds": 0})


async def limit_seats(here: Ground, count: int) -> None:
    body = {"metadata": {"name": "seats"}, "spec": {"hard": {f"requests.{SEAT}": str(count)}}}
    await here.cluster.create(here.path("resourcequotas"), body)


def every_fault(here: Ground, there: Ground, above: str) -> Iterator[Awaitable[str | None]]:
    """All that happens, side by side. `there`, pods need seats."""
    unpulled = "its image can't be pulled: ", "none:1", "not found"
    yield never_starts(here, ZOOM, FailureCause.IMAGE_PULL, *unpulled)
    yield never_starts(here, TEAMS, FailureCause.IMAGE_PULL, "the name of its image is not valid")
    room = "no node has room for it: 0/2 nodes are available: ", f"Insufficient {SEAT}"
    yield never_starts(there, ZOOM, FailureCause.START_TIMEOUT, *room)
    yield never_starts(there, TEAMS, FailureCause.ENGINE, "The quota of the cluster a is used up")
    yield preempted(there, above)
    yield evicted_by_its_node(here)
    yield keeps_its_slot_until_it_is_dead(here)
    for name in FAULTS:
        yield ends_as_told(here, name)


async def test_whatever_happens_to_a_pod_is_told_in_words_that_a_person_understands(
    server: str, tmp_path: Path, whole_cluster: Cluster
) -> None:
    cluster = whole_cluster
    usual = {"leave_grace_ms": "1000", "max_launch_attempts": "1", "max_pool_size": "20"}
    async with (
        new_database(server) as one,
        new_database(server) as other,
        ground(
            cluster,
            tmp_path / "one",
            one,
            templates={"google-meet": LIMITED},
            image_zoom=f"{cluster.registry}/none:1",
            image_microsoft_teams="No Image",
            lost_after_ms="8000",
            **usual,
        ) as here,
        seats(cluster, 1),
        priority(cluster) as above,
        ground(
            cluster,
            tmp_path / "other",
            other,
            templates={"google-meet": seated(1), "zoom": seated(5), "microsoft-teams": seated(50)},
            image_zoom=f"{cluster.registry}/none:1",
            image_microsoft_teams=f"{cluster.registry}/none:1",
            deployment_limit_ms="30000",
            **usual,
        ) as there,
    ):
        await limit_seats(there, 20)
        ends = await asyncio.gather(*every_fault(here, there, above), return_exceptions=True)
        if wrong := [end for end in ends if isinstance(end, Exception)]:
            raise ExceptionGroup("not as told", wrong)
        slow = {end for end in ends if isinstance(end, str)}
        await here.at_rest(but=slow)
        await there.at_rest(but=slow)
