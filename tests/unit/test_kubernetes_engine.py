"""The Kubernetes engine on an imitated cluster: what a real one does only when it is in trouble."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.doctor.findings import Report
from botpool.doctor.kubernetes import examine_kubernetes
from botpool.engines.base import Container, ContainerSpec, ContainerState
from botpool.errors import EngineRefused, SettingsInvalid
from botpool.models.diagnoses import Result
from botpool.settings import Settings
from botpool.states import Platform
from tests.fakes.kubernetes import Server, Trouble
from tests.support.kubernetes_engine import imitated_api, imitated_engine

if TYPE_CHECKING:
    from pathlib import Path

    from botpool.engines.kubernetes.engine import KubernetesEngine

POD = Container("a", "pool-zoom-001-abcdef")
SPEC = ContainerSpec(
    host="a",
    name=POD.ref,
    slot_id=1,
    slot_name="pool-zoom-001",
    platform=Platform.ZOOM,
    image="bot:1",
    environment={},
)
TEMPLATE: dict[str, Any] = {
    "spec": {
        "schedulingGates": [{"name": "later"}],
        "tolerations": [{"key": "bots", "operator": "Exists", "tolerationSeconds": 5}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "bot",
                "volumeMounts": [
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
                    {"name": "shm", "mountPath": "/data", "subPath": "data"},
                ],
            }
        ],
    }
}
DROPPED = "The pods of zoom can't be made on a. The cluster a doesn't know spec.schedulingGates"


def older(made: dict[str, Any]) -> None:
    """A server of 1.20 doesn't know gates, and drops them without a word."""
    made.get("spec", {}).pop("schedulingGates", None)


def add_in_front(made: dict[str, Any]) -> None:
    """What webhooks do."""
    if made["kind"] == "Pod":
        spec = made["spec"]
        spec["containers"].insert(0, {"name": "proxy", "image": "proxy:1"})
        spec["volumes"].insert(0, {"name": "certificates", "secret": {"secretName": "c"}})
        spec["tolerations"].insert(0, {"key": "node.kubernetes.io/not-ready"})
        spec["containers"][1]["volumeMounts"].reverse()


@pytest.mark.parametrize("what", ["start", "stop"])
async def test_starts_and_stops_go_before_reads_that_wait(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botpool.engines.kubernetes.api._AT_A_TIME", 1)
    server, go_on = Server(), asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        answer = await server(request)
        await go_on.wait()
        return answer

    go_on.set()
    engine = imitated_engine(slow)
    await engine.create(SPEC)
    if what == "stop":
        await engine.start(POD, {})
    go_on.clear()
    server.calls.clear()
    reads = [
        asyncio.create_task(engine.observe(Container("a", f"pool-zoom-00{number}-abcdef")))
        for number in (2, 3, 4)
    ]
    while not server.calls:
        await asyncio.sleep(0)
    urgent = asyncio.ensure_future(
        engine.start(POD, {}) if what == "start" else engine.stop(POD, 1)
    )
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(urgent, *reads)
    changed = "POST" if what == "start" else "DELETE"
    # Only the read that was under way goes before it. Others may go while it is answered.
    assert server.calls[1][1].endswith(POD.ref)
    assert changed in {method for method, _ in server.calls[:-2]}


async def started(server: Server, engine: KubernetesEngine) -> dict[str, Any]:
    """A pod that runs, as its server has it."""
    await engine.create(SPEC)
    await engine.start(POD, {})
    server.calls.clear()
    return server.objects["pods", POD.ref]


@pytest.mark.parametrize(("ago", "asked"), [(-10, True), (10, True), (3600, False)])
async def test_no_log_is_asked_for_of_a_pod_that_should_have_been_over_long_ago(
    ago: float, *, asked: bool
) -> None:
    server = Server()
    engine = imitated_engine(server)
    pod = await started(server, engine)
    over_at = datetime.now(UTC) - timedelta(seconds=ago)
    pod["metadata"]["deletionTimestamp"] = over_at.isoformat()
    await engine.stop(POD, 1)
    assert (("GET", f"pods/{POD.ref}/log") in server.calls) is asked


@pytest.mark.parametrize("silent", [True, False])
async def test_a_kubelet_that_can_not_be_asked_proves_nothing_and_is_no_error_of_its_cluster(
    monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    monkeypatch.setattr("botpool.engines.kubernetes.engine._ASK_SECONDS", 0.01)
    server, asked = Server(), 0

    async def cut_off(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        if request.url.path.endswith("/log"):
            asked += 1
            if silent:
                await asyncio.Event().wait()
            raise httpx.ReadTimeout("", request=request)
        return await server(request)

    engine = imitated_engine(cut_off)
    pod = await started(server, engine)
    # Its kubelet was done with it before it was started, or somebody has forced its deletion.
    pod["metadata"] |= {
        "deletionTimestamp": datetime.now(UTC).isoformat(),
        "deletionGracePeriodSeconds": 0,
    }
    state = {"waiting": {"reason": "ContainerCreating"}}
    pod["status"]["containerStatuses"] = [{"name": "bot", "state": state}]
    assert (await engine.observe(POD)).state is ContainerState.STARTING
    with pytest.raises(EngineRefused, match="not proved stopped"):
        await engine.remove(POD)
    assert asked == 2


async def test_a_field_that_a_server_drops_keeps_botpool_from_starting() -> None:
    server = Server()
    server.admit = older
    with pytest.raises(SettingsInvalid, match=DROPPED):
        await imitated_engine(server, template=TEMPLATE).try_out()
    assert not server.objects


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("containers", 1, "volumeMounts", 0, "subPath"), "spec.containers.volumeMounts.subPath"),
        (("volumes", 1), "spec.volumes.shm"),
        (("tolerations", 1, "tolerationSeconds"), "spec.tolerations.tolerationSeconds"),
    ],
)
async def test_what_is_dropped_inside_of_a_list_is_found_wherever_it_stood(
    path: tuple[str | int, ...], said: str
) -> None:
    server = Server()

    def admit(made: dict[str, Any]) -> None:
        add_in_front(made)
        part: Any = made["spec"]
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]

    server.admit = admit
    with pytest.raises(SettingsInvalid, match=f"doesn't know {said}[.]$"):
        await imitated_engine(server, template=TEMPLATE).try_out()


async def test_what_a_webhook_adds_in_front_of_ours_drops_nothing() -> None:
    server = Server()
    server.admit = add_in_front
    await imitated_engine(server, template=TEMPLATE).try_out()
    assert server.calls == [("POST", "pods")]


async def test_a_cluster_that_was_away_at_the_start_is_tried_before_its_first_slot() -> None:
    server = Server()
    server.trouble = Trouble.AWAY
    engine = imitated_engine(server, template=TEMPLATE)
    await engine.try_out()
    server.trouble, server.admit = None, older
    with pytest.raises(EngineRefused, match=DROPPED):
        await engine.create(SPEC)
    assert not server.objects
    server.admit = lambda _: None  # it was upgraded
    await engine.create(SPEC)
    server.calls.clear()
    await engine.create(replace(SPEC, name="pool-zoom-002-abcdef"))
    assert server.calls == [("POST", "secrets")]


async def doctors_findings(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> list[tuple[Result, str]]:
    """What `botpool doctor` finds of a pod template."""
    monkeypatch.setattr(
        "botpool.doctor.kubernetes.kubernetes_apis", lambda _: {"a": imitated_api(server)}
    )
    (folder / "pod.yaml").write_text(template)
    (folder / "containers.toml").write_text('[all.kubernetes]\npod_template = "pod.yaml"\n')
    settings = Settings(
        data_dir=folder,
        engine="kubernetes",
        image_zoom="bot:1",
        container_file=folder / "containers.toml",
    )
    report = Report("kubernetes")
    await examine_kubernetes(report, settings, None)
    return [(each.result, each.found) for each in report.findings if each.check == "pod template"]


async def test_doctor_tells_of_a_field_that_a_server_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, template = Server(), json.dumps(TEMPLATE)  # JSON is YAML
    found = await doctors_findings(server, tmp_path, monkeypatch, template)
    assert found == [(Result.OK, "zoom: a would accept a bot's pod")]
    server.admit = older
    found = await doctors_findings(server, tmp_path, monkeypatch, template)
    assert found == [(Result.PROBLEM, "The cluster a doesn't know spec.schedulingGates")]


@pytest.mark.parametrize("empty", ["metadata:", "spec:\n  containers:"])
async def test_a_template_that_is_empty_where_it_must_not_be_is_told_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    server = Server()
    ((result, found),) = await doctors_findings(server, tmp_path, monkeypatch, empty)
    assert result is Result.PROBLEM
    assert "the pod template of" in found
    assert "has an empty" in found
    assert ("GET", "/version") in server.calls
    assert ("POST", "pods") not in server.calls
