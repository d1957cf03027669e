"""What `botpool doctor` finds on a real cluster, with the Role of the chart and nothing more."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.doctor.diagnosis import diagnose
from botpool.doctor.kubernetes import RIGHTS
from botpool.models.diagnoses import Result
from botpool.settings import Settings
from testbed.docker import BOT, busybox_image
from tests.support.helm import rules_of_the_chart
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from botpool.models.diagnoses import Finding
    from testbed.kubernetes import Cluster

USER = {"spec": {"securityContext": {"runAsUser": 10001}}}


@dataclass(frozen=True)
class Place:
    """A namespace, and botpool's account in it."""

    cluster: Cluster
    namespace: str
    image: str
    folder: Path
    kubeconfig: Path

    async def findings(
        self, template: Mapping[str, Any] = USER, *, probe: bool = False, **settings: Any
    ) -> list[Finding]:
        """What doctor finds, of the cluster alone."""
        (self.folder / "pod.yaml").write_text(json.dumps(template))  # JSON is YAML
        file = self.folder / "containers.toml"
        file.write_text('[all.kubernetes]\npod_template = "pod.yaml"\n')
        given = {
            "data_dir": self.folder,
            "engine": "kubernetes",
            "kubernetes_clusters": f"here={self.kubeconfig}",
            "image_google_meet": self.image,
            "container_file": file,
            "public_url": f"http://{self.cluster.address}:1",
            **settings,
        }
        found = await diagnose(Settings.model_validate(given), "kubernetes", probe=probe)
        return [each for each in found if each.engine == "kubernetes"]


@pytest.fixture(scope="module")
async def rules() -> list[dict[str, Any]]:
    return await rules_of_the_chart()


@pytest.fixture
async def place(
    cluster: Cluster, rules: Sequence[Mapping[str, Any]], tmp_path: Path
) -> AsyncIterator[Place]:
    image = await cluster.push(busybox_image(tmp_path / "bot.tar", "bot:1", script=BOT), "bot:1")
    async with cluster.namespace() as namespace:
        kubeconfig = await cluster.kubeconfig_of(namespace, rules)
        yield Place(cluster, namespace, image, tmp_path, kubeconfig)


def of(findings: Sequence[Finding], check: str) -> list[tuple[Result, str]]:
    return [(each.result, each.found) for each in findings if each.check == check]


def problem_of(findings: Sequence[Finding], check: str) -> str:
    (found,) = [
        each
        for each in findings
        if each.check == check and each.result in {Result.PROBLEM, Result.WARNING}
    ]
    assert found.mend
    return found.found


@asynccontextmanager
async def botpool_at(address: str) -> AsyncIterator[str]:
    """The URL of something that answers as a healthy botpool does."""
    app = web.Application()

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app.router.add_get("/healthz", healthz)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0).start()
        yield f"http://{address}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_with_the_role_of_the_chart_and_nothing_more_all_is_well(place: Place) -> None:
    async with botpool_at(place.cluster.address) as url:
        found = await place.findings(probe=True, public_url=url)
    bad = [each for each in found if each.result != Result.OK]
    assert not bad
    assert {each.check for each in found} >= {
        *("cluster", "namespace", "rights", "quota", "pod template", "pod security"),
        "way to botpool",
    }
    pods = await place.cluster.api.get(f"/api/v1/namespaces/{place.namespace}/pods")
    assert [pod for pod in pods.json()["items"] if "deletionTimestamp" not in pod["metadata"]] == []


@pytest.mark.parametrize("right", [RIGHTS[0], RIGHTS[6], RIGHTS[-1]], ids=str)
async def test_each_right_that_is_missing_is_named(
    right: Any, cluster: Cluster, rules: Sequence[Mapping[str, Any]], tmp_path: Path
) -> None:
    fewer = [
        {
            **rule,
            "verbs": [
                verb
                for verb in rule["verbs"]
                if right.resource not in rule["resources"] or verb != right.verb
            ],
        }
        for rule in rules
    ]
    async with cluster.namespace() as namespace:
        kubeconfig = await cluster.kubeconfig_of(
            namespace, [rule for rule in fewer if rule["verbs"]]
        )
        place = Place(cluster, namespace, "registry.example/bot:1", tmp_path, kubeconfig)
        found = problem_of(await place.findings(), "rights")
    assert found.endswith(f"may not: {right}")


async def test_a_cluster_that_does_not_answer_is_told(place: Place) -> None:
    config = json.loads(place.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://10.213.0.1:1"
    place.kubeconfig.write_text(json.dumps(config))
    assert "here doesn't answer" in problem_of(await place.findings(), "cluster")


async def test_a_namespace_that_is_not_there_is_told(place: Place) -> None:
    admin = f"here={place.cluster.kubeconfig}#test/nowhere"
    found = await place.findings(kubernetes_clusters=admin)
    assert "no namespace nowhere" in problem_of(found, "namespace")


async def test_a_quota_that_is_too_small_or_used_up_is_told(place: Place) -> None:
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    body = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}}
    await place.cluster.create(path, body)
    while "hard" not in (await place.cluster.api.get(f"{path}/few")).json().get("status", {}):
        await a_moment()
    assert "fewer than the 100 slots" in problem_of(await place.findings(), "quota")
    assert of(await place.findings(max_pool_size=3), "quota")[0][0] is Result.OK
    await place.cluster.api.patch(
        f"{path}/few",
        json={"spec": {"hard": {"pods": "0"}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    while (await place.cluster.api.get(f"{path}/few")).json()["status"]["hard"] != {"pods": "0"}:
        await a_moment()
    assert "used up" in problem_of(await place.findings(), "quota")


async def test_a_pull_secret_that_is_not_there_is_told(place: Place) -> None:
    template = {"spec": {**USER["spec"], "imagePullSecrets": [{"name": "of-the-registry"}]}}
    assert "no Secret of-the-registry" in problem_of(await place.findings(template), "pull secret")


async def test_a_template_that_the_server_refuses_is_told_in_its_words(place: Place) -> None:
    template = {"spec": {**USER["spec"], "nodeSelector": {"not a label!": "x"}}}
    assert "not a label!" in problem_of(await place.findings(template), "pod template")


async def test_a_template_is_held_against_the_level_of_its_namespace(place: Place) -> None:
    template = {"spec": {"securityContext": {"runAsNonRoot": False}, "hostNetwork": True}}
    ((result, found),) = of(await place.findings(template), "pod security")
    assert result is Result.OK
    assert "may run as root" in found
    await place.cluster.api.patch(
        f"/api/v1/namespaces/{place.namespace}",
        json={"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    found = problem_of(await place.findings(template), "pod security")
    assert "sets hostNetwork; may run as root" in found


async def test_a_pod_that_can_not_reach_botpool_says_why(place: Place) -> None:
    found = await place.findings(probe=True, public_url=f"http://{place.cluster.address}:1")
    assert "refused" in problem_of(found, "way to botpool")
