"""Images on nodes before a bot needs them, held there by DaemonSets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.doctor.kubernetes import violations
from botpool.engines.kubernetes.warm import warm_set
from botpool.errors import EngineUnavailable
from tests.fakes.kubernetes import Server
from tests.support.kubernetes_engine import imitated_engine

if TYPE_CHECKING:
    from botpool.engines.base import PullProgress
    from botpool.engines.kubernetes.engine import KubernetesEngine

RUNNING = {"name": "bot", "imageID": "sha256:1", "state": {"running": {}}}
PULLING = {"name": "bot", "imageID": "", "state": {"waiting": {"reason": "ContainerCreating"}}}


def sets(server: Server) -> dict[str, dict[str, Any]]:
    """The DaemonSets, by their image."""
    return {
        found["metadata"]["annotations"]["botpool/image"]: found
        for (kind, _), found in server.objects.items()
        if kind == "daemonsets"
    }


def observe(server: Server, *nodes: list[dict[str, Any]]) -> None:
    """The cluster has seen each DaemonSet, and has a pod of it on each node: these containers."""
    for daemon_set in sets(server).values():
        daemon_set["status"] = {"observedGeneration": 1, "desiredNumberScheduled": len(nodes)}
        for number, containers in enumerate(nodes):
            name = f"{daemon_set['metadata']['name']}-{number}"
            server.objects["pods", name] = {
                "metadata": {"name": name, "labels": daemon_set["metadata"]["labels"]},
                "spec": {"nodeName": f"n{number}"},
                "status": {"containerStatuses": containers},
            }


def grow_old(server: Server) -> None:
    """So much time goes by that no replica has other settings any more."""
    for daemon_set in sets(server).values():
        made_at = datetime.now(UTC) - timedelta(hours=2)
        daemon_set["metadata"]["creationTimestamp"] = made_at.isoformat()


class Nodes:
    """What a cluster with two nodes does at each look at a pull."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[list[dict[str, Any]], ...]] = []
        self._server = server
        monkeypatch.setattr("botpool.engines.kubernetes.engine.asyncio.sleep", self)

    async def __call__(self, _: float) -> None:
        observe(self._server, *self.steps.pop(0))


async def hold(server: Server, engine: KubernetesEngine, image: str) -> None:
    """Each node holds an image."""
    with pytest.raises(IndexError):  # it waits for nodes
        await engine.pull("a", image, lambda _: None)
    observe(server, [RUNNING], [RUNNING])
    assert await engine.has_image("a", image)


async def test_a_pull_tells_how_many_nodes_hold_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    server, told = Server(), list["PullProgress"]()
    nodes = Nodes(server, monkeypatch)
    # What somebody adds to the pod of a DaemonSet says nothing of the image.
    beside = {"name": "beside", "imageID": "sha256:2", "state": {"running": {}}}
    nodes.steps = [
        ([PULLING, beside], [PULLING]),
        ([PULLING, beside], [RUNNING]),
        ([RUNNING, beside], [RUNNING]),
    ]
    engine = imitated_engine(server)
    assert not await engine.has_image("a", "bot:1")
    assert await engine.pull("a", "bot:1", told.append)
    assert [(each.current, each.total) for each in told] == [(0, 2), (1, 2), (2, 2)]
    assert not await engine.pull("a", "bot:1", told.append)
    assert await engine.has_image("a", "bot:1")


async def test_a_pull_that_gets_nowhere_says_what_the_nodes_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    monkeypatch.setattr("botpool.engines.kubernetes.engine._STUCK_SECONDS", 0)
    failing = {"waiting": {"reason": "ErrImagePull", "message": "no route to host"}}
    nodes = Nodes(server, monkeypatch)
    nodes.steps = [([RUNNING], [{"name": "bot", "state": failing}])] * 2
    with pytest.raises(EngineUnavailable, match="is on 1 of 2 nodes of a: n1: no route to host"):
        await imitated_engine(server).pull("a", "bot:1", lambda _: None)


async def test_an_image_that_no_bot_is_made_of_any_more_is_let_go_when_a_roll_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    Nodes(server, monkeypatch)
    before, after = imitated_engine(server, "bot:1"), imitated_engine(server, "bot:2")
    await hold(server, before, "bot:1")
    grow_old(server)
    await hold(server, after, "bot:2")
    # Each replica is asked of its own image, and leaves that of the other.
    for engine, image in ((before, "bot:1"), (after, "bot:2")) * 2:
        assert await engine.has_image("a", image)
    assert {*sets(server)} == {"bot:1", "bot:2"}
    grow_old(server)
    assert await after.has_image("a", "bot:2")
    assert {*sets(server)} == {"bot:2"}


async def test_an_image_that_is_held_otherwise_now_and_one_that_was_asked_for_go_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    Nodes(server, monkeypatch)
    await hold(server, imitated_engine(server), "bot:1")
    moved = imitated_engine(server, template={"spec": {"nodeSelector": {"pool": "bots"}}})
    await hold(server, moved, "bot:1")
    await hold(server, moved, "other:1")
    assert len([kind for kind, _ in server.objects if kind == "daemonsets"]) == 3
    for (kind, _), found in server.objects.items():
        if kind == "daemonsets":
            found["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert await moved.has_image("a", "other:1")  # who asks for it wants it
    assert await moved.has_image("a", "bot:1")
    (left,) = [found for (kind, _), found in server.objects.items() if kind == "daemonsets"]
    assert left["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "bots"}
    assert left["metadata"]["annotations"]["botpool/image"] == "bot:1"


async def test_what_another_installation_holds_in_the_namespace_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    Nodes(server, monkeypatch)
    await hold(server, imitated_engine(server, "bot:1", installation="other"), "bot:1")
    ours = imitated_engine(server, "bot:2")
    await hold(server, ours, "bot:2")
    grow_old(server)
    assert await ours.has_image("a", "bot:2")
    assert {*sets(server)} == {"bot:1", "bot:2"}


def test_an_image_is_fetched_where_and_as_bots_fetch_it_and_nothing_else_of_them_is_there() -> None:
    alike: dict[str, Any] = {
        "nodeSelector": {"pool": "bots"},
        "tolerations": [{"key": "bots", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "bots",
        "priorityClassName": "bots",
        "runtimeClassName": "gvisor",
        "schedulerName": "other",
    }
    of_nodes: dict[str, Any] = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
    }
    of_pods = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}
    spec: dict[str, Any] = {
        **alike,
        # One bot a node: this must not keep bots from where their image is held.
        "affinity": {"nodeAffinity": of_nodes, "podAntiAffinity": of_pods, "podAffinity": of_pods},
        "securityContext": {"runAsUser": 10001},
        "hostNetwork": True,
        "volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}],  # noqa: S108
        "containers": [
            {
                "name": "bot",
                "imagePullPolicy": "Always",
                "env": [{"name": "TOKEN", "value": "secret"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
            },
            {"name": "beside", "image": "other:1"},
        ],
    }
    made = warm_set({"spec": spec}, "bot:1", {"botpool/installation": "test"})
    pod = made["spec"]["template"]
    assert pod["spec"].items() >= alike.items()
    assert pod["spec"]["affinity"] == {"nodeAffinity": of_nodes}
    assert pod["spec"]["securityContext"]["runAsUser"] == 10001
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not pod["spec"].keys() & {"hostNetwork", "volumes"}
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("bot:1", "Always")
    assert not container.keys() & {"env", "envFrom", "volumeMounts"}
    assert [*violations(pod)] == []
