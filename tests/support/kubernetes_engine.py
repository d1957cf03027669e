"""The Kubernetes engine, on a real cluster and on an imitated one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from botpool.engines.kubernetes.api import KubernetesApi
from botpool.engines.kubernetes.credentials import Access, User, from_kubeconfig
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    {
        "apiGroups": ["apps"],
        "resources": ["daemonsets"],
        "verbs": ["get", "list", "create", "delete"],
    },
]
"""What botpool may do, and no more."""

ROOT = {"spec": {"securityContext": {"runAsNonRoot": False}}}
"""The images of tests run as root."""


def cluster_engine(
    config: Path,
    image: str,
    *,
    template: dict[str, Any] = ROOT,
    grace_seconds: float = 5,
    installation: str = "test",
    namespace: str | None = None,
) -> KubernetesEngine:
    """An engine with the cluster "a", as a kubeconfig describes it."""
    access = from_kubeconfig(config, None, namespace)
    return KubernetesEngine(
        {"a": KubernetesApi("a", access)},
        installation=installation,
        stop_grace_seconds=grace_seconds,
        templates=dict.fromkeys(Platform, template),
        images={Platform.ZOOM: image},
    )


def imitated_api(server: Callable[[httpx.Request], Any]) -> KubernetesApi:
    """The cluster "a", whose requests a test answers."""
    access = Access("https://cluster", "bots", User({"token": "secret"}, Path(), {}))
    return KubernetesApi("a", access, httpx.MockTransport(server))


def imitated_engine(
    server: Callable[[httpx.Request], Any],
    image: str = "bot:1",
    *,
    template: Mapping[str, Any] | None = None,
    installation: str = "test",
) -> KubernetesEngine:
    """An engine with the cluster "a", whose requests a test answers."""
    return KubernetesEngine(
        {"a": imitated_api(server)},
        installation=installation,
        stop_grace_seconds=1,
        templates={Platform.ZOOM: template},
        images={Platform.ZOOM: image},
    )
