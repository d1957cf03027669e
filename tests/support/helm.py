"""Helm and kubectl, as tests/helm/install installs them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from testbed.kubernetes import Cluster

FOLDER = Path(
    os.environ.get("BOTPOOL_TEST_HELM")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "botpool-test-helm"
)
ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"


class Failed(Exception):
    """It said no."""


async def rendered(*options: str, namespace: str = "botpool") -> list[dict[str, Any]]:
    """The objects that Helm makes of the chart."""
    made = await run("helm", "template", "botpool", str(CHART), "--namespace", namespace, *options)
    return [each for each in yaml.safe_load_all(made) if each]


async def rules_of_the_chart() -> list[dict[str, Any]]:
    """What the Role of the chart allows a worker."""
    objects = await rendered("--set", "bots.images.googleMeet=registry.example/bot:1")
    (role,) = [each for each in objects if each["kind"] == "Role"]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def environment(cluster: Cluster | None = None) -> dict[str, str]:
    """What `helm` and `kubectl` run with. What they keep of a cluster goes with the cluster."""
    if cluster is None:
        of_cluster = {"HOME": "/nonexistent", "KUBECONFIG": os.devnull}
    else:
        of_cluster = {"HOME": str(cluster.kubeconfig.parent), "KUBECONFIG": str(cluster.kubeconfig)}
    return {"PATH": os.environ["PATH"], **of_cluster}


async def run(program: str, *arguments: str, cluster: Cluster | None = None) -> str:
    """What `helm` or `kubectl` prints. Raises `Failed` with what it complains about."""
    if not (FOLDER / "installed").exists():
        pytest.skip("needs Helm and kubectl: run tests/helm/install")
    process = await asyncio.create_subprocess_exec(
        *(str(FOLDER / program), *arguments),
        env=environment(cluster),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await process.communicate()
    if process.returncode:
        raise Failed(f"{program} {' '.join(arguments)}: {output.decode()}{error.decode()}")
    return output.decode()
