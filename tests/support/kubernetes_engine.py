"""The Kubernetes engine on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botpool.engines.kubernetes.api import KubernetesApi
from botpool.engines.kubernetes.credentials import from_kubeconfig
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.states import Platform

if TYPE_CHECKING:
    from pathlib import Path

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
