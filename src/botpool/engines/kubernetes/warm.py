"""Images on nodes before a bot needs them: a DaemonSet for each image, which botpool runs.

Its pods do nothing but sleep, on each node that bots may use. The image is in use there, so the
kubelet doesn't clean it up. Each kubelet fetches an image once, whoever needs it, so nothing waits
for anything here.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from botpool.engines.kubernetes.template import CONTAINER, pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from botpool.engines.kubernetes.api import Object

WARM = "botpool-warm"
IMAGE = "botpool/image"

_PLACED_BY = (
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "serviceAccountName",
    "serviceAccount",
    "imagePullSecrets",
    "securityContext",
    "runtimeClassName",
    "schedulerName",
)
"""The fields that say which nodes bots may use, and with what they fetch and start an image.

An account may have pull secrets. And a bot must not push out what holds its image.
"""
_HOLDS = frozenset({"CrashLoopBackOff", "RunContainerError", "CreateContainerError"})
"""An image without `sleep` can't be held by a process, but it is on the node, and in use."""
_ROLL = timedelta(hours=1)
"""So long replicas may have different settings, and an image that somebody asked for is held."""


def warm_set(template: Mapping[str, Any] | None, image: str, labels: Mapping[str, str]) -> Object:
    """The DaemonSet that holds an image where bots made with this template may run."""
    bot = pod(template, name=WARM, image=image, labels={}, grace_seconds=0)
    (container,) = [each for each in bot["spec"]["containers"] if each["name"] == CONTAINER]
    kept = {
        key: container[key] for key in ("securityContext", "imagePullPolicy") if key in container
    }
    spec = {key: bot["spec"][key] for key in _PLACED_BY if key in bot["spec"]}
    # Rules about other pods are not for these: they would keep bots away from their own image.
    if of_nodes := (bot["spec"].get("affinity") or {}).get("nodeAffinity"):
        spec["affinity"] = {"nodeAffinity": of_nodes}
    spec |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "command": ["sleep", "2147483647"],
                "resources": {
                    "requests": {"cpu": "1m", "memory": "1Mi"},
                    "limits": {"cpu": "50m", "memory": "32Mi"},
                },
                **kept,
            }
        ],
    }
    digest = hashlib.sha256(
        orjson.dumps([spec, dict(labels)], option=orjson.OPT_SORT_KEYS)
    ).hexdigest()[:10]
    own = {**labels, "botpool/warm": digest}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"{WARM}-{digest}", "labels": own, "annotations": {IMAGE: image}},
        "spec": {
            "selector": {"matchLabels": own},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": own}, "spec": spec},
        },
    }


def wanted(daemon_set: Object) -> int | None:
    """How many nodes are to hold the image; None if that is not known yet."""
    status = daemon_set.get("status") or {}
    if status.get("observedGeneration", 0) < daemon_set["metadata"].get("generation", 1):
        return None
    number: int = status.get("desiredNumberScheduled", 0)
    return number


def holds(pod_: Object) -> bool:
    """Whether the image of a DaemonSet's pod is on its node."""
    status = _status(pod_)
    state = status.get("state") or {}
    waits_for = (state.get("waiting") or {}).get("reason")
    return bool(status.get("imageID")) or "running" in state or waits_for in _HOLDS


def trouble(pod_: Object) -> str | None:
    """Why the image of a DaemonSet's pod is not on its node, if the kubelet says so."""
    waiting = (_status(pod_).get("state") or {}).get("waiting") or {}
    if not waiting.get("message"):
        return None
    return f"{pod_['spec'].get('nodeName')}: {waiting['message']}"


def _status(pod_: Object) -> Mapping[str, Any]:
    """What the kubelet says of the container that holds the image; somebody may add others."""
    found = (pod_.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in found if each["name"] == CONTAINER), {})


def superseded(sets: Sequence[Object], names: set[str]) -> list[Object]:
    """Which of an installation's DaemonSets are to go: only those of these names are wanted.

    Neither a young one, nor any while one of those is missing or young: as long as botpool is
    rolled, another replica may want others.
    """
    since = datetime.now(UTC) - _ROLL
    old = {
        each["metadata"]["name"]: each
        for each in sets
        if datetime.fromisoformat(each["metadata"]["creationTimestamp"]) < since
    }
    if not names <= old.keys():
        return []
    return [each for name, each in old.items() if name not in names]
