"""The chart: what Helm makes of it, and what a real API server says to that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.helm import CHART, ROOT, Failed, rendered, run

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kubernetes import Cluster

BOT = ("--set", "bots.images.googleMeet=registry.example/bot:1")
PLACEHOLDERS = (
    *("--set", "placeholders.replicas=2", "--set", "placeholders.image=registry.example/bot:1"),
)
PLAIN = ROOT / "deploy" / "kubernetes.yaml"


async def test_the_chart_has_nothing_to_complain_about() -> None:
    assert "0 chart(s) failed" in await run("helm", "lint", "--strict", str(CHART), *BOT)


async def test_the_plain_manifests_are_what_helm_makes_of_the_chart() -> None:
    head, _, body = PLAIN.read_text().partition("---\n")
    found = re.search(r"^#   helm (template .*)$", head, re.MULTILINE)
    assert found is not None
    command = found[1].replace("deploy/chart", str(CHART)).split()
    assert await run("helm", *command) == f"---\n{body}", f"run: helm {found[1]}"


async def test_a_release_without_a_bots_image_or_with_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Failed, match="image of at least one platform"):
        await rendered()
    with pytest.raises(Failed, match="replica"):
        await rendered(*BOT, "--set", "api.replica=3")
    with pytest.raises(Failed, match=r"placeholders\.image"):
        await rendered(*BOT, "--set", "placeholders.replicas=1")


async def test_nothing_of_it_has_rights_beyond_its_namespace() -> None:
    objects = await rendered(*BOT)
    kinds = {each["kind"] for each in objects}
    assert kinds == {
        *("ConfigMap", "Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "Service"),
        "ServiceAccount",
    }


async def test_every_pod_of_it_passes_the_level_restricted() -> None:
    """As Pod Security Standards list it; the server that we test on doesn't know them yet."""
    deployments = [
        each for each in await rendered(*BOT, *PLACEHOLDERS) if each["kind"] == "Deployment"
    ]
    assert len(deployments) == 3
    for each in deployments:
        spec = each["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert {*(key for volume in spec.get("volumes", ()) for key in volume)} <= {
            *("name", "emptyDir", "configMap"),
        }
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("options", [(), PLACEHOLDERS])
async def test_a_real_api_server_accepts_what_helm_makes(
    options: tuple[str, ...], cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.namespace() as namespace:
        made = await run(
            *("helm", "template", "botpool", str(CHART), "--namespace", namespace),
            *("--kube-version", "1.20.2", *BOT, *options),
        )
        (tmp_path / "made.yaml").write_text(made)
        told = await run(
            *("kubectl", "--namespace", namespace, "apply", "--dry-run=server", "--validate=true"),
            *("--filename", str(tmp_path / "made.yaml")),
            cluster=cluster,
        )
    assert told.count("created (server dry run)") == len([*yaml.safe_load_all(made)])
