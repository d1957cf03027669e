"""The pods of bots: our default, the user's template merged into it, and what is ours.

The template is merged by the rules of `kubectl patch`, a strategic merge: maps key by key, lists of
named things by their names, other lists as a whole; `null` and `$patch` take out and replace. What
botpool needs can't be overridden: a template that tries to is a mistake.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from botpool.container_file import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botpool.engines.kubernetes.api import Object

CONTAINER = "bot"
"""The name of the container that runs the bot's image. A template may add others beside it."""

FINALIZER = "botpool/proof"
"""It keeps a pod until nothing of it is proved to run, whoever deletes it."""

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
}
"""What tells the things in a list apart, by its name. Other lists are replaced as a whole."""

_PATCH = "$patch"

_DEFAULT: Object = {
    "metadata": {
        "annotations": {
            # Autoscalers must not move a bot that is in a call.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }
    },
    "spec": {
        # What the Pod Security level `restricted` asks for.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": CONTAINER,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}

_OUR_METADATA = frozenset(
    {"name", "generateName", "namespace", "finalizers", "ownerReferences", "uid"}
)
_OUR_SPEC = frozenset(
    {
        "restartPolicy",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "terminationGracePeriodSeconds",
        "nodeName",
        "ephemeralContainers",
    }
)
_OUR_CONTAINER = frozenset({"image"})
_OUR_LABELS = ("botpool/", "app.kubernetes.io/name", "app.kubernetes.io/managed-by")


def mistakes(template: Mapping[str, Any]) -> Iterator[str]:
    """What can't be in a template, a clause each. The server checks the rest."""
    if template.get("apiVersion", "v1") != "v1" or template.get("kind", "Pod") != "Pod":
        yield "is not a Pod of v1"
    for key in template.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        yield f"has {key}, which no Pod to be made has"
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if misshapen := [*_misshapen(metadata, spec)]:
        yield from misshapen
        return
    for key in sorted(metadata.keys() & _OUR_METADATA):
        yield f"sets metadata.{key}, which is botpool's own"
    for key in sorted(metadata.get("labels") or ()):
        if str(key).startswith(_OUR_LABELS):
            yield f"sets the label {key}, which is botpool's own"
    for key in sorted(spec.keys() & _OUR_SPEC):
        yield f"sets spec.{key}, which is botpool's own"
    for list_ in ("containers", "initContainers"):
        for container in spec.get(list_) or ():
            yield from _container_mistakes(list_, container)
    yield from _lacking(merged(_DEFAULT, template))
    yield from _directives(template)


def _lacking(made: Object) -> Iterator[str]:
    """What the template has taken out of a pod, and must be there."""
    containers = made["spec"].get("containers", ())
    if not any(isinstance(each, dict) and each.get("name") == CONTAINER for each in containers):
        yield f"takes out the container {CONTAINER}, which is botpool's own"


def _misshapen(metadata: object, spec: object) -> Iterator[str]:
    """What is empty or of another kind than Kubernetes has there, and is not only taken out."""
    parts: list[tuple[str, object, type]] = [("metadata", metadata, dict), ("spec", spec, dict)]
    if isinstance(metadata, dict):
        parts.append(("metadata.labels", metadata.get("labels") or {}, dict))
    if isinstance(spec, dict):
        parts.append(("spec.containers", spec.get("containers", []), list))
        parts.append(("spec.initContainers", spec.get("initContainers") or [], list))
    for name, value, kind in parts:
        if value is None:
            yield f"has an empty {name}: fill it, or leave it out"
        elif not isinstance(value, kind):
            yield f"has no {'map' if kind is dict else 'list'} as {name}"


def _container_mistakes(list_: str, container: object) -> Iterator[str]:
    if not isinstance(container, dict) or not container.get("name"):
        yield f"has an entry of spec.{list_} without a name"
        return
    if container["name"] != CONTAINER:
        return
    if list_ != "containers":
        yield f"takes the container {CONTAINER}, which is botpool's own"
    for key in sorted(container.keys() & _OUR_CONTAINER):
        yield f"sets the {key} of the container {CONTAINER}: set the image of its platform"
    for variable in container.get("env") or ():
        if isinstance(variable, dict) and variable.get("name") in OURS:
            yield f"sets {variable['name']}, which botpool itself gives to the bot"


def _directives(value: object) -> Iterator[str]:
    """The directives of a strategic merge that are not known here."""
    if isinstance(value, dict):
        for key, part in value.items():
            if str(key).startswith("$") and (key != _PATCH or part not in {"replace", "delete"}):
                yield f"has the directive {key}: only `$patch` with replace or delete is known"
            yield from _directives(part)
    elif isinstance(value, list):
        for part in value:
            yield from _directives(part)


def merged(base: Object, patch: Mapping[str, Any]) -> Object:
    """A map with a patch merged into it, by Kubernetes' own rules. Neither is changed."""
    if patch.get(_PATCH) == "replace":
        return {key: deepcopy(value) for key, value in patch.items() if key != _PATCH}
    result = deepcopy(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in _KEYS:
            result[key] = _merged_list(result.get(key) or [], value, _KEYS[key])
        else:
            result[key] = deepcopy(value)
    return result


def _merged_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    """A list of named things: those of the patch change those of the same name, or are added."""
    if any(isinstance(each, dict) and each.get(_PATCH) == "replace" for each in patch):
        return [
            deepcopy(each) for each in patch if not isinstance(each, dict) or _PATCH not in each
        ]
    result = [deepcopy(each) for each in base]
    for each in patch:
        if not isinstance(each, dict):
            result.append(each)
            continue
        name = each.get(key)
        named = ((i, old) for i, old in enumerate(result) if isinstance(old, dict))
        at = next((i for i, old in named if old.get(key) == name), None)
        if each.get(_PATCH) == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(merged({}, each))
        else:
            result[at] = merged(result[at], each)
    return result


def pod(
    template: Mapping[str, Any] | None,
    *,
    name: str,
    image: str,
    labels: Mapping[str, str],
    grace_seconds: float,
) -> Object:
    """The pod of a bot, whose environment is in the Secret of its name. Nothing secret is in it."""
    made = merged(_DEFAULT, template or {})
    metadata, spec = made["metadata"], made["spec"]
    metadata["name"] = name
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["finalizers"] = [FINALIZER]
    spec |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace_seconds),
    }
    (bot,) = [each for each in spec["containers"] if each["name"] == CONTAINER]
    bot["image"] = image
    # Last, so that what is ours wins over what the template brings.
    bot["envFrom"] = [*(bot.get("envFrom") or []), {"secretRef": {"name": name}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owned(made: Object, secret: Object) -> Object:
    """A pod that doesn't outlive its Secret, and never runs without it."""
    owner = {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": secret["metadata"]["name"],
        "uid": secret["metadata"]["uid"],
    }
    return merged(made, {"metadata": {"ownerReferences": [owner]}})


def away_from(made: Object, node: str) -> Object:
    """A pod that goes to another node than this one, if another has room."""
    term = {
        "weight": 100,
        "preference": {
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
        },
    }
    affinity = (made["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = [*(affinity.get(preferred) or []), term]
    return merged(made, {"spec": {"affinity": {"nodeAffinity": {preferred: terms}}}})
