"""Slots on Kubernetes clusters. A host is a cluster and a namespace of it, not a node.

A container is a Secret with the environment of its bot, made by `create`, and a Pod of the same
name, made by `start`, which the Secret owns: a Secret alone is a container that was never started.
A start that comes late, when the Secret is gone, never runs. Every write and deletion carries the
uid of the object that it means. Nothing here touches objects that are not this installation's.

A finalizer keeps each pod until nothing of it is proved to run (pods.py), whoever deletes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from botpool.engines.base import (
    REFERENCE,
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    PullProgress,
    Traits,
)
from botpool.engines.kubernetes import pods, trial, warm
from botpool.engines.kubernetes.api import Kind, NameTaken
from botpool.engines.kubernetes.template import CONTAINER, FINALIZER, away_from, owned, pod
from botpool.engines.kubernetes.watch import PodWatch
from botpool.errors import (
    ContainerMissing,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    NoImage,
    SettingsInvalid,
)
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from botpool.engines.base import ContainerSpec
    from botpool.engines.kubernetes.api import KubernetesApi, Object

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_INSTALLATION = "botpool/installation"
_SLOT_ID = "botpool/slot-id"
_SLOT_NAME = "botpool/slot-name"
_NAME = "app.kubernetes.io/name"
_BOT = "botpool-bot"
_POD = "botpool/pod"
"""The annotation of a Secret with the pod that a start makes."""

_KEPT_LINES = 1000
_KEPT_LOGS = 500
_OPEN_SECONDS = 3.0
"""How long a log may take to open before its container is stopped all the same."""
_LOG_SECONDS = 5.0
_AFTER_GRACE_SECONDS = 5.0
_ASK_SECONDS = 3.0
"""How long a kubelet may take to say that a container doesn't run."""
_TRIES = 5
_LOOK_SECONDS = 1.0
_STUCK_SECONDS = 300.0
"""After so long without progress on any node, a pull is given up for now."""


class KubernetesEngine:
    """The clusters in `clusters`, each with its API.

    Objects carry the name of the `installation`. `templates` are what users want of the pods of
    each platform, and `images` the images that these are made of.
    """

    name = "kubernetes"

    def __init__(
        self,
        clusters: Mapping[str, KubernetesApi],
        *,
        installation: str,
        stop_grace_seconds: float,
        templates: Mapping[Platform, Mapping[str, Any] | None] | None = None,
        images: Mapping[Platform, str | None] | None = None,
    ) -> None:
        self._clusters = dict(clusters)
        self._labels = {"app.kubernetes.io/managed-by": "botpool", _INSTALLATION: installation}
        self._installation = installation
        self._grace_seconds = stop_grace_seconds
        self._templates = dict(templates or {})
        self._images = dict(images or {})
        selector = f"{_INSTALLATION}={installation},{_SLOT_ID}"
        self._selector = selector
        self._watches = {host: PodWatch(api, selector) for host, api in self._clusters.items()}
        self._tried: set[tuple[str, Platform]] = set()
        """The clusters that have said that they would take the pods of a platform."""
        self._last_lines: dict[str, list[str]] = {}
        """What stopped containers wrote, for a deleted pod's log is soon gone."""
        made = pod(None, name="", image="", labels={}, grace_seconds=stop_grace_seconds)
        self.traits = Traits(
            environment_at_start=False,
            has_nodes=True,
            made_with=hashlib.sha256(orjson.dumps(made, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        )

    @property
    def images(self) -> Sequence[str]:
        """The images that pods are made of."""
        return [image for image in self._images.values() if image]

    def hosts(self) -> Sequence[str]:
        """The clusters in the order in which they were given."""
        return tuple(self._clusters)

    async def open_hosts(self) -> Sequence[str]:
        """All of them: botpool waits for a cluster that doesn't answer."""
        return self.hosts()

    async def try_out(self) -> None:
        """Let each cluster say whether it would take our pods. Raises `SettingsInvalid`.

        One that doesn't answer may be away for a while. It is asked before it gets its first slot.
        """
        for host in self._clusters:
            for platform in Platform:
                try:
                    await self._try_out(host, platform)
                except EngineRefused as error:
                    raise SettingsInvalid(f"{error}.") from None
                except EngineUnavailable as error:
                    _log.warning(
                        "a cluster can't say yet whether it would take the pods of bots",
                        host=host,
                        platform=platform,
                        error=str(error),
                    )

    # Images

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Have each node that bots may use hold an image, and wait until all do."""
        api = self._api(host)
        now = asyncio.get_running_loop().time
        made, missing = await self._make_warm(api, image), False
        best, since = -1, now()
        while True:
            total, current, troubles = await self._warm_nodes(api, made)
            if total is not None:
                progress(PullProgress(current=current, total=total))
                if current >= total:
                    return missing
            missing = True
            if current > best:
                best, since = current, now()
            elif now() - since >= _STUCK_SECONDS:
                said = f": {'; '.join(troubles)}" if troubles else ""
                raise EngineUnavailable(
                    f"{image} is on {current} of {total} nodes of {host}{said}."
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def has_image(self, host: str, image: str) -> bool:
        """Whether each node that bots may use holds an image.

        This is asked again and again. So here the DaemonSets go that are not wanted any more.
        """
        api = self._api(host)
        sets = await self._warm_sets(api)
        await self._clean_up_warm(api, sets, {*self.images, image})
        found = {each["metadata"]["name"]: each for each in sets}
        wanted = [each["metadata"]["name"] for each in self._wanted_sets(image)]
        if any(name not in found for name in wanted):
            return False
        total, current, _ = await self._warm_nodes(api, [found[name] for name in wanted])
        return total is not None and current >= total

    # Containers

    async def create(self, spec: ContainerSpec) -> str:
        """Create the Secret. It replaces a container of ours that has its name and is stopped.

        Raises `EngineRefused` if the cluster would not take its pod as the template says.
        """
        if not spec.image:
            raise NoImage(f"{spec.slot_name} has no image: set the image of its platform.")
        labels = {
            **self._labels,
            _NAME: _BOT,
            _SLOT_ID: str(spec.slot_id),
            _SLOT_NAME: spec.slot_name,
        }
        made = self._pod(spec.platform, spec.name, spec.image, labels)
        secret: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": spec.name,
                "labels": labels,
                "annotations": {_POD: orjson.dumps(made).decode()},
            },
            "immutable": True,
            "stringData": {**spec.environment, REFERENCE: spec.name},
        }
        api = self._api(spec.host)
        with suppress(EngineUnavailable):  # then it is tried before the next one
            await self._try_out(spec.host, spec.platform)
        try:
            await api.create(Kind.SECRET, secret)
        except NameTaken:
            await self._make_way(api, Container(spec.host, spec.name))
            await api.create(Kind.SECRET, secret)
        return spec.name

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Create the Pod, with the environment that is in its Secret, and return its uid."""
        api = self._api(container.host)
        secret = await self._own(api, Kind.SECRET, container.ref, urgent=True)
        if secret is None or "deletionTimestamp" in secret["metadata"]:
            raise ContainerMissing(f"{container.ref} is not on {container.host}.")
        made = owned(orjson.loads(secret["metadata"]["annotations"][_POD]), secret)
        if avoid_node is not None:
            made = away_from(made, avoid_node)
        try:
            started = await api.create(Kind.POD, made)
        except NameTaken:
            found = await self._own(api, Kind.POD, container.ref, urgent=True)
            if found is None or not _owned_by(found, secret):
                raise EngineUnavailable(f"The name {container.ref} is not free yet.") from None
            started = found
        uid: str = started["metadata"]["uid"]
        return uid

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the pod is doing, read afresh. `MISSING` if what has its name is not ours."""
        api = self._api(container.host)
        found = await self._own(api, Kind.POD, container.ref)
        if found is not None:
            events = None
            if pods.wants_events(found):
                chosen = f"involvedObject.uid={found['metadata']['uid']}"
                events, _ = await api.list(Kind.EVENT, fieldSelector=chosen)
            told = pods.observation(found, events, proved=await self._proved_stopped(api, found))
            if told.over_at and await self._own(api, Kind.SECRET, container.ref) is None:
                return replace(told, detail=f"its Secret was deleted by somebody; {told.detail}")
            return told
        if deployment is not None:
            said = "its pod is gone: somebody deleted it and took botpool's finalizer off"
            return Observation(state=ContainerState.MISSING, detail=said)
        secret = await self._own(api, Kind.SECRET, container.ref)
        state = ContainerState.MISSING if secret is None else ContainerState.CREATED
        return Observation(state=state)

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Delete the pod, and read its log until it has ended, or should have."""
        api = self._api(container.host)
        found = await self._own(api, Kind.POD, container.ref, urgent=True)
        if found is None or pods.proved_stopped(found):
            return
        async with AsyncExitStack() as stack:
            lines: AsyncIterator[str] | None = None
            if pods.observation(found).state is ContainerState.RUNNING and not pods.is_late(found):
                # Opened before, because the log of a deleted pod is gone when it has ended.
                with suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(_OPEN_SECONDS):
                        following = api.log(container.ref, CONTAINER, _KEPT_LINES, follow=True)
                        lines = await stack.enter_async_context(following)
            if pods.over_at(found) is None:
                # Never none: a server takes that as a kubelet's word that it is done.
                await api.delete(Kind.POD, found, max(1, math.ceil(grace_seconds)))
            elif pods.is_overdue(found):
                # A kubelet may miss the deletion of a pod that has just started: this is news.
                await api.delete(Kind.POD, found, 1)
            if lines is not None:
                with suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(grace_seconds + _AFTER_GRACE_SECONDS):
                        await self._keep(container.ref, lines)

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Let go of the pod, if nothing of it runs or it is given up, and delete the Secret."""
        api = self._api(container.host)
        found = await self._own(api, Kind.POD, container.ref)
        if found is not None:
            if not unproved and not await self._proved_stopped(api, found):
                raise EngineRefused(f"{container.ref} is not proved stopped, so it is not removed.")
            await self._let_go(api, found)
        secret = await self._own(api, Kind.SECRET, container.ref)
        if secret is not None:
            await api.delete(Kind.SECRET, secret)
        self._last_lines.pop(container.ref, None)

    async def describe(self, container: Container, text: str) -> None:
        """Do nothing: what a pod shows of its slot are its labels."""

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that a container wrote to both outputs, in order."""
        api = self._api(container.host)
        if (kept := self._last_lines.get(container.ref)) is not None:
            return kept[-lines:] if lines else []
        found = await self._own(api, Kind.POD, container.ref)
        if lines == 0 or found is None:
            return []
        try:
            async with (
                asyncio.timeout(_LOG_SECONDS),
                api.log(container.ref, CONTAINER, lines) as written,
            ):
                return [line async for line in written]
        except TimeoutError:
            node = pods.node_of(found)
            raise EngineUnavailable(
                f"The node {node} of {container.host} doesn't answer."
            ) from None

    async def close(self) -> None:
        """End the watches, and close the connections to every cluster."""
        for host, api in self._clusters.items():
            await self._watches[host].close()
            await api.close()

    # How

    def _api(self, host: str) -> KubernetesApi:
        if host not in self._clusters:
            raise EngineUnavailable(f"BOTPOOL_KUBERNETES_CLUSTERS has no cluster named {host}.")
        return self._clusters[host]

    def _pod(self, platform: Platform, name: str, image: str, labels: Mapping[str, str]) -> Object:
        return pod(
            self._templates.get(platform),
            name=name,
            image=image,
            labels=labels,
            grace_seconds=self._grace_seconds,
        )

    async def _try_out(self, host: str, platform: Platform) -> None:
        """Let a cluster say, once, whether it would take the pods of a platform.

        Raises `EngineError`.
        """
        image = self._images.get(platform)
        if image is None or (host, platform) in self._tried:
            return
        made = self._pod(platform, f"botpool-dry-run-{platform}", image, {})
        try:
            await trial.try_out(self._api(host), made)
        except EngineRefused as error:
            where = f"The pods of {platform} can't be made on {host}"
            raise EngineRefused(f"{where}. {error}") from None
        self._tried.add((host, platform))

    async def _own(
        self, api: KubernetesApi, kind: Kind, name: str, *, urgent: bool = False
    ) -> Object | None:
        """An object, None if it is gone or not ours. What is in a Secret is not read."""
        found = await api.find(kind, name, metadata=kind is Kind.SECRET, urgent=urgent)
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        return found if labels.get(_INSTALLATION) == self._installation else None

    async def _proved_stopped(self, api: KubernetesApi, found: Object) -> bool:
        """Whether nothing of a pod runs, by what is read of it, or by its kubelet's own word."""
        if pods.proved_stopped(found):
            return True
        waiting = pods.never_started(found)
        if waiting is None:
            return False
        name = found["metadata"]["name"]
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return all([await api.says_stopped(name, each) for each in waiting])
        except (EngineUnavailable, TimeoutError):
            return False  # a node that can't be asked proves nothing, nor is its cluster ill

    async def _make_way(self, api: KubernetesApi, container: Container) -> None:
        """Remove the stopped container of ours that has a name. Raises if there is none."""
        found = await api.find(Kind.SECRET, container.ref, metadata=True)
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        if found is not None and labels.get(_INSTALLATION) != self._installation:
            raise EngineRefused(
                f"The name {container.ref} is taken on {container.host} by another."
            )
        await self.remove(container)

    async def _let_go(self, api: KubernetesApi, found: Object) -> None:
        """Delete a pod of which nothing runs, without waiting for its kubelet."""
        for _ in range(_TRIES):
            left = await api.delete(Kind.POD, found, 0)
            if left is None or left.get("kind") != "Pod":
                return
            others = [each for each in left["metadata"].get("finalizers", ()) if each != FINALIZER]
            with suppress(EngineUnavailable):
                await api.change(Kind.POD, left, {"finalizers": others or None})
                return
        raise EngineUnavailable(f"{found['metadata']['name']} changes too fast to be removed.")

    async def _keep(self, ref: str, lines: AsyncIterator[str]) -> None:
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            async for line in lines:
                kept.append(line)
        finally:
            if kept:
                self._last_lines[ref] = [*kept]
            while len(self._last_lines) > _KEPT_LOGS:
                del self._last_lines[next(iter(self._last_lines))]

    # Images on nodes

    def _wanted_sets(self, image: str) -> list[Object]:
        """The DaemonSets that hold an image where the bots of each platform that has it may run."""
        users = [each for each, used in self._images.items() if used == image]
        labels = {**self._labels, _NAME: warm.WARM}
        sets = (
            warm.warm_set(self._templates.get(each), image, labels)
            for each in users or [*Platform][:1]
        )
        return [*{each["metadata"]["name"]: each for each in sets}.values()]

    async def _make_warm(self, api: KubernetesApi, image: str) -> list[Object]:
        """The DaemonSets that hold an image, made if there are none."""
        made = []
        for each in self._wanted_sets(image):
            found = await api.find(Kind.DAEMON_SET, each["metadata"]["name"])
            if found is None:
                try:
                    found = await api.create(Kind.DAEMON_SET, each)
                except NameTaken:  # another replica was faster
                    found = each
            made.append(found)
        return made

    async def _warm_sets(self, api: KubernetesApi) -> Sequence[Object]:
        selector = f"{_INSTALLATION}={self._installation},{_NAME}={warm.WARM}"
        found, _ = await api.list(Kind.DAEMON_SET, labelSelector=selector)
        return found

    async def _warm_nodes(
        self, api: KubernetesApi, made: Sequence[Object]
    ) -> tuple[int | None, int, Sequence[str]]:
        """How many nodes are to hold an image, how many do, and what the others say."""
        total, current, troubles = 0, 0, set()
        for each in made:
            found = await api.find(Kind.DAEMON_SET, each["metadata"]["name"])
            if found is None:
                raise EngineUnavailable(f"The DaemonSet {each['metadata']['name']} was deleted.")
            wanted = warm.wanted(found)
            if wanted is None:
                return None, current, ()
            digest = found["metadata"]["labels"]["botpool/warm"]
            holding, _ = await api.list(Kind.POD, labelSelector=f"botpool/warm={digest}")
            total += wanted
            current += sum(map(warm.holds, holding))
            troubles |= {said for pod_ in holding if (said := warm.trouble(pod_))}
        return total, current, sorted(troubles)

    async def _clean_up_warm(
        self, api: KubernetesApi, sets: Sequence[Object], images: set[str]
    ) -> None:
        """Delete those of an installation's DaemonSets that don't hold these images as bots do."""
        wanted = (each for image in images for each in self._wanted_sets(image))
        for found in warm.superseded(sets, {each["metadata"]["name"] for each in wanted}):
            await api.delete(Kind.DAEMON_SET, found)
            _log.info(
                "an image is not held on nodes any more: no bot is made of it",
                host=api.host,
                image=(found["metadata"].get("annotations") or {}).get(warm.IMAGE),
            )

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of this installation: the pods that its watch knows, and all Secrets."""
        api = self._api(host)
        found: dict[str, tuple[Object, Observation]] = {}
        secrets, _ = await api.list(Kind.SECRET, metadata=True, labelSelector=self._selector)
        for secret in secrets:
            observation = Observation(state=ContainerState.CREATED)
            found[secret["metadata"]["name"]] = secret, observation
        for each in await self._watches[host].pods():
            found[each["metadata"]["name"]] = each, pods.observation(each)
        return [
            ListedContainer(
                container=Container(host, name),
                slot_id=int(object_["metadata"]["labels"][_SLOT_ID]),
                slot_name=object_["metadata"]["labels"][_SLOT_NAME],
                observation=observation,
            )
            for name, (object_, observation) in found.items()
        ]


def _owned_by(found: Object, secret: Object) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(each["uid"] == secret["metadata"]["uid"] for each in owners)
