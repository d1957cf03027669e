"""A pool on a real cluster, in a namespace of its own, with no more rights than it needs."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botpool.reconciler import Reconciler
from testbed.docker import busybox_image
from tests.support.kubernetes_engine import ROOT, RULES
from tests.support.site import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.kubernetes import Cluster
    from tests.support.site import Site


@dataclass(frozen=True)
class Ground:
    """A site, and the namespace of the cluster that its slots are in."""

    site: Site
    cluster: Cluster
    namespace: str

    async def reconciler(self) -> Reconciler:
        """A reconciler that is not killed."""
        site = self.site
        return Reconciler(
            site.store,
            site.pool,
            site.engines,
            site.settings,
            installation=await site.store.installation.name(),
        )

    async def objects(self, kind: str = "pods", **params: str) -> list[dict[str, Any]]:
        """What is in the namespace that botpool has made."""
        chosen = {"labelSelector": "app.kubernetes.io/name=botpool-bot", **params}
        answer = await self.cluster.api.get(self.path(kind), params=chosen)
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}{'/' if name else ''}{name}"


@asynccontextmanager
async def ground(
    url: str,
    folder: Path,
    cluster: Cluster,
    *,
    template: dict[str, Any] = ROOT,
    env: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Ground]:
    """A site whose bots claim, unless TEST_BEHAVIOUR in `env` says otherwise."""
    image = await cluster.push(busybox_image(folder / "bot.tar", "bot:1"), "bot:1")
    (folder / "pod.yaml").write_text(json.dumps(template))
    variables = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (env or {}).items())
    (folder / "containers.toml").write_text(
        f'[all.kubernetes]\npod_template = "pod.yaml"\n[all.env]\n{variables}'
    )
    async with cluster.namespace() as namespace:
        config = await cluster.kubeconfig_of(namespace, RULES)
        usual = {
            "image_zoom": image,
            "stop_grace_ms": 2000,
            "reservation_ttl_ms": 900,
            "poll_interval_ms": 100,
            "pull_ahead": False,
        }
        async with opened(
            url,
            serve=True,
            address=cluster.address,
            engine="kubernetes",
            data_dir=folder,
            kubernetes_clusters=f"a={config}",
            container_file=folder / "containers.toml",
            **{**usual, **settings},
        ) as site:
            yield Ground(site, cluster, namespace)
