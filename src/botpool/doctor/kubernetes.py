"""The engine `kubernetes`: from each cluster's address to a pod that could be made there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion, Version

from botpool.doctor.hosts import examine_lost_slots, examine_room
from botpool.doctor.kubernetes_probe import examine_way_back
from botpool.engines.kubernetes.api import Kind
from botpool.engines.kubernetes.settings import check_templates, kubernetes_apis
from botpool.engines.kubernetes.template import CONTAINER, pod
from botpool.engines.kubernetes.trial import try_out
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botpool.doctor.database import Known
    from botpool.doctor.findings import Check, Report
    from botpool.engines.kubernetes.api import KubernetesApi, Object
    from botpool.settings import Settings

_SETTING = "BOTPOOL_KUBERNETES_CLUSTERS"
_OLDEST = Version("1.20")
_TRIED = "botpool-doctor"
_LEVEL = "pod-security.kubernetes.io/enforce"
_ROLE = "Give botpool's account the Role of deploy/chart: docs/how-to/kubernetes.md."
_SECONDS = 30.0

_OK = 200
_NOT_FOUND = 404


class Right(NamedTuple):
    """What botpool must be allowed to do in its namespace."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        """As Kubernetes names it."""
        return f"{self.verb} {self.resource}"


RIGHTS = (
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    Right("get", "pods/log"),
    *(Right(verb, "secrets") for verb in ("get", "list", "create", "delete")),
    Right("list", "events"),
    *(Right(verb, "daemonsets", "apps") for verb in ("get", "list", "create", "patch", "delete")),
)
"""Every right that the engine uses. The Role of the chart has these, and some to examine it."""


async def examine_kubernetes(
    report: Report, settings: Settings, known: Known | None, *, probe: bool = False
) -> None:
    """Check each cluster as far as the account's rights allow.

    It makes nothing there, except with `probe`: a pod that calls botpool, which it deletes again.
    """
    pods: Mapping[Platform, Object] = {}
    async with report.check("pod template", "Correct the pod template."):
        check_templates(settings)
        pods = _pods(settings)
    apis: dict[str, KubernetesApi] = {}
    async with report.check("clusters", f"Correct {_SETTING}."):
        apis = kubernetes_apis(settings)
    try:
        await asyncio.gather(
            *(_examine(report, settings, api, pods, probe=probe) for api in apis.values())
        )
    finally:
        for api in apis.values():
            await api.close()
    if apis:
        await examine_room(report, settings, len(apis))
        await examine_lost_slots(report, "kubernetes", apis, known, _SETTING)


async def _examine(
    report: Report,
    settings: Settings,
    api: KubernetesApi,
    pods: Mapping[Platform, Object],
    *,
    probe: bool,
) -> None:
    if not await _examine_version(report, api):
        return
    level = await _examine_namespace(report, api)
    await _examine_rights(report, api)
    await _examine_quota(report, settings, api)
    for platform, made in pods.items():
        await _examine_template(report, api, platform, made, level)
    if probe:
        for made in [*pods.values()][:1]:
            await examine_way_back(report, settings, api, made)


def _pods(settings: Settings) -> Mapping[Platform, Object]:
    """A bot's pod for each platform that has an image."""
    return {
        platform: pod(
            settings.container_options(platform).kubernetes.pod_template,
            name=f"{_TRIED}-{platform}",
            image=image,
            labels={},
            grace_seconds=settings.stop_grace_ms / 1000,
        )
        for platform in Platform
        if (image := settings.image(platform)) is not None
    }


async def _examine_version(report: Report, api: KubernetesApi) -> bool:
    """Whether the cluster answers."""
    mend = f"Correct {_SETTING}, or the kubeconfig and its credentials."
    async with report.check("cluster", mend) as check:
        said = str((await api.version()).get("gitVersion"))
        found = f"{api.host} answers at {api.access.server} as Kubernetes {said}"
        try:
            old = Version(said.removeprefix("v").partition("-")[0].partition("+")[0]) < _OLDEST
        except InvalidVersion:
            old = False
        if old:
            check.warning(f"{found}, which is older than {_OLDEST}", "Use a newer cluster.")
        else:
            check.ok(found)
        return True
    return False


async def _examine_namespace(report: Report, api: KubernetesApi) -> str | None:
    """The Pod Security level that the namespace enforces, if that is known."""
    name = api.access.namespace
    async with report.check("namespace", f"Correct the namespace in {_SETTING}.") as check:
        answer = await api.request("GET", f"/api/v1/namespaces/{name}")
        if answer.status_code == _NOT_FOUND:
            check.problem(
                f"{api.host} has no namespace {name}",
                f"Create it, or correct the namespace in {_SETTING}.",
            )
            return None
        if answer.status_code != _OK:
            check.not_checked(f"{api.host}: botpool's account may not read the namespace {name}")
            return None
        namespace = answer.json()
        level = (namespace["metadata"].get("labels") or {}).get(_LEVEL)
        if (namespace.get("status") or {}).get("phase") == "Terminating":
            check.problem(f"The namespace {name} of {api.host} is being deleted", "Use another.")
        else:
            said = f"Pod Security level {level}" if level else "no Pod Security level"
            check.ok(f"{name} of {api.host}, which enforces {said}")
        return str(level) if level else None
    return None


async def _examine_rights(report: Report, api: KubernetesApi) -> None:
    async with report.check("rights", _ROLE, seconds=_SECONDS) as check:
        allowed = await asyncio.gather(*(_is_allowed(api, right) for right in RIGHTS))
        lacking = [str(right) for right, has in zip(RIGHTS, allowed, strict=True) if not has]
        if lacking:
            check.problem(
                f"In the namespace {api.access.namespace} of {api.host} botpool's account may not:"
                f" {', '.join(lacking)}",
                _ROLE,
            )
        else:
            check.ok(f"All that botpool needs in {api.access.namespace} of {api.host}")


async def _is_allowed(api: KubernetesApi, right: Right) -> bool:
    """Ask the server itself. Everybody may ask about their own rights."""
    resource, _, part = right.resource.partition("/")
    attributes = {
        "namespace": api.access.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        **({"subresource": part} if part else {}),
    }
    answer = await api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        json={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    answer.raise_for_status()
    return bool((answer.json().get("status") or {}).get("allowed"))


async def _examine_quota(report: Report, settings: Settings, api: KubernetesApi) -> None:
    async with report.check("quota") as check:
        name = api.access.namespace
        answer = await api.request("GET", f"/api/v1/namespaces/{name}/resourcequotas")
        if answer.status_code != _OK:
            check.not_checked(f"{api.host}: botpool's account may not list quotas in {name}")
            return
        quotas = answer.json().get("items") or []
        for quota in quotas:
            _check_quota(check, settings, quota)
        if not quotas:
            check.ok(f"{name} of {api.host} has none")


def _check_quota(check: Check, settings: Settings, quota: Object) -> None:
    name, status = quota["metadata"]["name"], quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    told = ", ".join(f"{used.get(key, 0)} of {most} {key}" for key, most in sorted(hard.items()))
    wanted = settings.max_pool_size
    few = {
        key: int(hard[key])
        for key in ("pods", "count/pods", "secrets", "count/secrets")
        if str(hard.get(key, "")).isdecimal() and int(hard[key]) < wanted
    }
    full = [key for key, most in hard.items() if used.get(key) == most]
    if full:
        check.problem(
            f"The quota {name} is used up: {told}",
            "Raise it, or make room: bots that need it fail to start until then.",
        )
    elif few:
        check.warning(
            f"The quota {name} allows fewer than the {wanted} slots a platform may have: {told}",
            "Raise it, or lower BOTPOOL_MAX_POOL_SIZE: each bot is a pod and a secret.",
        )
    else:
        check.ok(f"{name}: {told}")


async def _examine_template(
    report: Report, api: KubernetesApi, platform: Platform, made: Object, level: str | None
) -> None:
    spec = made["spec"]
    async with report.check("pull secret") as check:
        for each in spec.get("imagePullSecrets") or ():
            if await api.find(Kind.SECRET, each["name"], metadata=True) is None:
                check.problem(
                    f"{platform}: {api.access.namespace} of {api.host} has no Secret"
                    f" {each['name']}, with which its image is to be pulled",
                    "Create it, or correct imagePullSecrets in the pod template.",
                )
            else:
                check.ok(f"{platform}: {each['name']}")
    async with report.check("pod template", "Correct the pod template.") as check:
        await try_out(api, made)
        check.ok(f"{platform}: {api.host} would accept a bot's pod")
    async with report.check("pod security") as check:
        found = [*violations(made)]
        if not found:
            check.ok(f"{platform}: a bot's pod passes the level restricted")
        elif level == "restricted":
            check.problem(
                f"{platform}: {api.access.namespace} of {api.host} enforces the level restricted,"
                f" and a bot's pod {'; '.join(found)}",
                "Correct the pod template, or lower the namespace's level.",
            )
        else:
            check.ok(
                f"{platform}: a bot's pod doesn't pass the level restricted: it {'; '.join(found)}"
            )


def violations(made: Object) -> Iterator[str]:
    """What the Pod Security level `restricted` has against a pod, a clause each.

    As far as a template of ours may differ: an older server doesn't know the level itself.
    """
    spec = made["spec"]
    whole = spec.get("securityContext") or {}
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"sets {key}"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f"mounts a folder of its node, by the volume {volume['name']}"
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        yield from _violations(container, whole)


def _violations(container: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    both = {**whole, **own}
    where = "" if container["name"] == CONTAINER else f" in the container {container['name']}"
    capabilities = own.get("capabilities") or {}
    if own.get("privileged"):
        yield f"is privileged{where}"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"may gain privileges{where}"
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"keeps capabilities{where}"
    if added := {*(capabilities.get("add") or ())} - {"NET_BIND_SERVICE"}:
        yield f"adds the capabilities {', '.join(sorted(added))}{where}"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield f"may run as root{where}"
    if (both.get("seccompProfile") or {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"has no seccomp profile{where}"
