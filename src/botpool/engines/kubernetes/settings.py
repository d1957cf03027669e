"""How the settings describe clusters, and the engine on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from botpool.engines.kubernetes.api import KubernetesApi
from botpool.engines.kubernetes.credentials import from_kubeconfig, in_cluster
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.engines.kubernetes.template import mistakes
from botpool.errors import SettingsInvalid
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.engines.kubernetes.credentials import Access
    from botpool.settings import Settings

_SETTING = "BOTPOOL_KUBERNETES_CLUSTERS"
IN_CLUSTER = "in-cluster"
"""The name of the cluster that botpool runs in, if the settings name none."""


def kubernetes_clusters(setting: str | None) -> dict[str, Access]:
    """How to reach each cluster in the setting `kubernetes_clusters`, in order.

    Each is `name=kubeconfig#context/namespace`. Without a kubeconfig it is the cluster that botpool
    runs in; without a setting, that is the only one. Raises `SettingsInvalid`.
    """
    if setting is None:
        return {IN_CLUSTER: in_cluster(None)}
    clusters: dict[str, Access] = {}
    for number, entry in enumerate(setting.split(","), start=1):
        name, equals, where = entry.strip().partition("=")
        if not name or not equals:
            raise SettingsInvalid(
                f"Entry {number} of {_SETTING} must look like `name=kubeconfig#context/namespace`."
            )
        if name in clusters:
            raise SettingsInvalid(f"{_SETTING} has two clusters named {name}: rename one.")
        clusters[name] = _access(where)
    places = [(each.server, each.namespace) for each in clusters.values()]
    if len({*places}) < len(places):
        raise SettingsInvalid(f"{_SETTING} names one namespace of one cluster twice.")
    return clusters


def _access(where: str) -> Access:
    path, _, place = where.partition("#")
    # A context's name may have a `/` itself, a namespace's not.
    before, slash, after = place.rpartition("/")
    context, namespace = (before, after) if slash else (after, "")
    if not path:
        if context:
            raise SettingsInvalid(f"{_SETTING} names a context without a kubeconfig.")
        return in_cluster(namespace or None)
    return from_kubeconfig(Path(path).expanduser(), context or None, namespace or None)


def check_templates(settings: Settings) -> None:
    """Raise `SettingsInvalid` if a pod template asks for what is botpool's own."""
    for platform in Platform:
        template = settings.container_options(platform).kubernetes.pod_template
        if found := [*mistakes(template or {})]:
            raise SettingsInvalid(
                f"BOTPOOL_CONTAINER_FILE: the pod template of {platform} {'; '.join(found)}."
            )


def kubernetes_apis(settings: Settings) -> dict[str, KubernetesApi]:
    """The API of each cluster in the settings. Raises `SettingsInvalid`."""
    clusters = kubernetes_clusters(settings.kubernetes_clusters)
    return {name: KubernetesApi(name, access) for name, access in clusters.items()}


def kubernetes_engine(
    settings: Settings, installation: str, apis: Mapping[str, KubernetesApi] | None = None
) -> KubernetesEngine:
    """The engine that the settings describe. Raises `SettingsInvalid`."""
    return KubernetesEngine(
        kubernetes_apis(settings) if apis is None else apis,
        installation=installation,
        stop_grace_seconds=settings.stop_grace_ms / 1000,
        templates={
            each: settings.container_options(each).kubernetes.pod_template for each in Platform
        },
        images={each: settings.image(each) for each in Platform},
    )
