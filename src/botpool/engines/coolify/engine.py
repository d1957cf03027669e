"""Containers of "docker image" applications on Coolify v4, on one or many servers.

A host is a server's uuid, and a container's reference is its application's uuid. Coolify's statuses
may be minutes old, its stops and deletions happen later than asked, and Docker restarts containers
that end by themselves. So a start is watched by its own deployment.

Coolify counts requests, so a life costs few of its own: the environment, the start, the stop, and
two descriptions. Everything else is read for all slots at once (view.py). What proves a stop:

- A list of deployments that was read after the stop was answered has none of this application: a
  deployment under way would start it again.
- From v4.3.3 on, a stop itself writes the status `exited` when it is done. A list from after the
  stop shows that, and one from before it shows another status: so `exited` is not an old one from
  before the start. If no list shows another (the status may lag behind a short life), Coolify is
  asked for logs once: it looks for a running container then, and finds none.
- Before v4.3.3, the status may stay as it was for a minute, or for ever. If it is `exited`, Coolify
  is asked for logs once. If not, Coolify finds no running container when asked for logs, twice,
  some seconds apart: one such answer is weak, because a container that Docker is about to restart
  gets it, too. If the status says that it restarts, the two are farther apart than Docker ever
  waits. A comparison that meets the same old status within minutes does not ask again.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

from botpool.container_file import DockerOptions
from botpool.engines.base import (
    REFERENCE,
    STOPPED,
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    Traits,
)
from botpool.engines.coolify.budget import Urgency
from botpool.engines.coolify.view import EXITED, LIST_SECONDS, Shared, View
from botpool.engines.coolify.wire import split_image, version_number
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    EngineUnavailable,
    NoImage,
)
from botpool.models.slots import SlotName, read_slot_name
from botpool.tasks.backoff import Backoff
from botpool.tasks.sharing import SharedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from packaging.version import Version

    from botpool.engines.base import ContainerSpec, PullProgress
    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.wire import Application, Deployment
    from botpool.states import Platform

_STATES = {
    "running": ContainerState.RUNNING,
    **dict.fromkeys(EXITED, ContainerState.EXITED),
    "degraded": ContainerState.FAILED,
    "error": ContainerState.FAILED,
}
"""With any other status, it is starting."""

_LONGEST_DESCRIPTION = 255
_STOPS_APART = Backoff(60.0, 600.0)
_WORD_SECONDS = 5.0
"""So long after its deployment is over, a bot is usually heard. Only then is Coolify asked."""
_SILENCES_APART_SECONDS = 5.0
_STALE_SECONDS = 600.0
"""So long, a status that was proved wrong is not asked about again, if it stays the same."""
_RESTARTS_APART_SECONDS = 65.0
"""Docker waits at most a minute before it restarts a container."""
_PATIENCE_SECONDS = 900.0
_KEEP_SECONDS = 3600.0
_MOST_CREATIONS = 4
"""At a time. They must not hold up the start that brings the image for all."""
_MEGABYTE = 2**20
_KEPT_BESIDE_OURS = 2
"""How many images of a repository Coolify keeps by itself: for a way back to an older one."""

_NO_DOMAIN_SINCE = version_number("4.0.0-beta.454")
_KEEPS_IMAGES_SINCE = version_number("4.2.0")
_TAGS_SINCE = version_number("4.2.0")
_GRACE_SINCE = version_number("4.2.0")
_NAMES_SINCE = version_number("4.3.0")
_NO_PORTS_SINCE = version_number("4.3.0")
_WRITES_EXITED_SINCE = version_number("4.3.3")

_MADE_WITH = "2"
"""Goes up when applications get fields that they did not have before, so that old ones get them."""

_DESCRIPTION = re.compile(r"\[(?:IDLE|DEPLOYING|BUSY|RELEASING|ERROR)\] ")


class SlotLike(NamedTuple):
    """An application that is named like a slot: `pool-zoom-007`, with or without a prefix."""

    application: Application
    container: Container
    named: SlotName


@dataclass
class _Stop:
    """A stop that Coolify has accepted, and what was seen of it."""

    at: float
    was_up: bool
    """A list from before it, and since the start, showed another status than `exited`."""
    number: int = 1
    """How many times it was stopped since the start."""
    silent_since: float | None = None
    """When Coolify, asked for logs, first found no running container."""
    ask_at: float = -inf
    """When to ask for logs again."""
    stale: str | None = None
    """The status with which it was proved stopped. As long as it stays, it says nothing new."""
    stale_until: float = -inf


class CoolifyEngine:
    """The servers in `servers`, each with its destination, or None if it has only one.

    Applications are created in one environment of one project. Of the `options` of a platform they
    get the limits of CPUs, memory and shared memory. Coolify's clean-up leaves them all of the
    `images`. Without `bot_data`, a start leaves the environment unchanged. No list is read more
    often than every `list_seconds`.
    """

    name = "coolify"

    def __init__(
        self,
        api: CoolifyApi,
        servers: Mapping[str, str | None],
        *,
        project: str,
        environment: str,
        installation: str,
        options: Mapping[Platform, DockerOptions] | None = None,
        images: Collection[str] = (),
        stop_grace_seconds: float | None = None,
        bot_data: bool = True,
        list_seconds: float = LIST_SECONDS,
    ) -> None:
        self._grace = None if stop_grace_seconds is None else max(1, ceil(stop_grace_seconds))
        self.traits = Traits(
            lags=True,
            reusable=True,
            environment_at_start=bot_data,
            pulls_at_start=True,
            keeps_logs=False,
            one_api=True,
            patience_seconds=_PATIENCE_SECONDS,
            metered=True,
            queues_starts=True,
            describes=True,
            adaptable=True,
            place=f"{project}/{environment}",
            made_with=f"{_MADE_WITH}/{self._grace}/{sorted(images)}",
        )
        self._api = api
        self._view = View(api, list_seconds)
        self._version = Shared(self._read_version, _KEEP_SECONDS)
        self._place = Shared(self._read_place, _KEEP_SECONDS)
        self._servers = dict(servers)
        self._project = project
        self._environment = environment
        self._installation = installation
        self._options = dict(options or {})
        self._images = frozenset(images)
        self._creations = asyncio.Semaphore(_MOST_CREATIONS)
        # These only save requests: forgetting them does no harm.
        self._stops: dict[str, _Stop] = {}
        self._over_since: dict[str, tuple[str, float]] = {}
        self._texts: dict[str, str] = {}
        self._describing: dict[str, SharedCall[None]] = {}

    def hosts(self) -> Sequence[str]:
        """The servers in the order in which they were given."""
        return tuple(self._servers)

    async def open_hosts(self) -> Sequence[str]:
        """The servers that Coolify can reach and use."""
        reachable = await self._view.reachable()
        return [server for server in self._servers if server in reachable]

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Never called: Coolify pulls with every start."""
        raise EngineRefused("Coolify pulls an image only when it starts a container.")

    async def has_image(self, host: str, image: str) -> bool:
        """Never called: Coolify doesn't say which images a server has."""
        raise EngineRefused("Coolify doesn't say which images a server has.")

    async def create(self, spec: ContainerSpec) -> str:
        """Create an application, and set its environment.

        If an earlier call created it and the reply was lost, it is found by its description.
        """
        self._check_host(spec.host)
        if spec.ref is not None:
            return await self._adapt(spec, spec.ref)
        async with self._creations:
            return await self._find_or_create(spec)

    async def _find_or_create(self, spec: ContainerSpec) -> str:
        mark = f"{self._marks()}{spec.slot_id} as {spec.name}"
        # Before the first call with this name, there is nothing to find.
        listed = {} if spec.first else await self._view.applications()
        made = [found for found in listed.values() if found.description == mark]
        if made:
            uuid = made[0].uuid
            if made[0].state not in EXITED:
                raise EngineRefused(f"{spec.slot_name} ({uuid}) is running.")
        else:
            uuid = await self._create(spec, mark)
        self._view.changed(uuid)
        environment = {**spec.environment, REFERENCE: uuid}
        if not await self._api.set_environment(uuid, environment, Urgency.CREATE):
            raise EngineUnavailable(f"{uuid} was deleted while it was being created.")
        return uuid

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Set the environment, have the application deployed, and return the deployment's uuid.

        Coolify may name a deployment that it never made, because its queue is full: `observe` finds
        that out. If it names none, the one that is under way counts.
        """
        self._check_host(container.host)
        uuid = container.ref
        if not stopped:
            running = await self._deployment_under_way(uuid) or await self._running(uuid)
            if running is not None:
                return running
        if environment and not await self._api.set_environment(
            uuid, {**environment, REFERENCE: uuid}
        ):
            raise ContainerMissing(f"The application {uuid} is gone.")
        self._stops.pop(uuid, None)
        self._over_since.pop(uuid, None)
        try:
            found, deployment = await self._api.start(uuid)
        finally:
            self._view.changed(uuid)
        if not found:
            raise ContainerMissing(f"The application {uuid} is gone.")
        deployment = deployment or await self._deployment_under_way(uuid)
        if deployment is None:
            raise EngineUnavailable(f"Coolify accepted the start of {uuid} but made no deployment.")
        return deployment

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """The state of a deployment; without one, whether the application is proved stopped."""
        self._check_host(container.host)
        if deployment is not None:
            return await self._watch(container, deployment)
        application = await self._view.application(container.ref)
        if application is None:
            self._forget(container.ref)
            return Observation(state=ContainerState.MISSING)
        await self._view.check(container.host)
        stop = self._stops.get(container.ref)
        if stop is None:
            return await self._examined(container.ref, _observation(application))
        seen = await self._proved(application, stop)
        if seen.state not in STOPPED:
            self._view.changed(container.ref)  # the next look is at a newer list
        return seen

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Cancel queued deployments, and have the application stopped.

        A deployment under way is left to finish, and what it starts is stopped by a later call:
        to cancel it, Coolify kills a process on the server that may be any other. A second call
        soon after does nothing, unless a deployment was seen in the meantime.
        """
        self._check_host(container.host)
        uuid = container.ref
        now = asyncio.get_running_loop().time()
        last = self._stops.get(uuid)
        # Each stop takes one of Coolify's few workers, and they may be what it waits for.
        if last is not None and now - last.at < _STOPS_APART.seconds(last.number):
            return
        was_up = await self._was_up(uuid)
        # If it came up, its deployment is past the start. Any other is found out after the stop.
        if not was_up and await self._keeps_deploying(uuid):
            return
        if await self._api.stop(uuid):
            number = 1 if last is None else last.number + 1
            was_up = was_up or (last is not None and last.was_up)
            self._stops[uuid] = _Stop(asyncio.get_running_loop().time(), was_up, number)
        self._view.changed(uuid)

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Have the application deleted. Raises `EngineRefused` if it isn't proved stopped."""
        observation = await self.observe(container)
        if observation.state not in STOPPED:
            raise EngineRefused(f"The application {container.ref} is {observation.state}.")
        await self._api.delete_application(container.ref)
        self._forget(container.ref)

    async def describe(self, container: Container, text: str) -> None:
        """Set the application's description. If several texts wait, only the newest is sent."""
        uuid = container.ref
        self._texts[uuid] = text[:_LONGEST_DESCRIPTION]
        describing = self._describing.setdefault(uuid, SharedCall(partial(self._describe, uuid)))
        while uuid in self._texts:
            await describing()

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines of a running container. Coolify has none of an ended one."""
        self._check_host(container.host)
        if lines <= 0:
            return []
        return await self._api.logs(container.ref, min(lines, 10_000)) or []

    async def close(self) -> None:
        """Close the connections."""
        for describing in self._describing.values():
            await describing.close()
        await self._view.close()
        await self._version.close()
        await self._place.close()
        await self._api.close()

    async def slot_like(self) -> Sequence[SlotLike]:
        """Every application on our servers that is named like a slot, ours or not."""
        found = []
        for application in (await self._view.applications()).values():
            named = read_slot_name(application.name, lenient=True)
            hosts = [host for host in self._servers if self._is_on(application, host)]
            if named and hosts:
                container = Container(hosts[0], application.uuid)
                found.append(SlotLike(application, container, named))
        return found

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """The applications on a server that are ours, or look so by name and description."""
        self._check_host(host)
        await self._view.check(host)
        return [
            ListedContainer(
                container=Container(host, found.uuid),
                slot_id=self._slot_id(found),
                slot_name=found.name,
                observation=_observation(found),
                description=found.description or "",
            )
            for found in (await self._view.applications()).values()
            if self._is_on(found, host) and (self._slot_id(found) is not None or _looks_ours(found))
        ]

    def _forget(self, uuid: str) -> None:
        self._view.forget(uuid)
        for known in (self._stops, self._over_since, self._texts, self._describing):
            known.pop(uuid, None)

    def _check_host(self, host: str) -> None:
        if host not in self._servers:
            raise EngineUnavailable(f"BOTPOOL_COOLIFY_SERVER_UUID doesn't name the server {host}.")

    def _is_on(self, found: Application, host: str) -> bool:
        return found.server == host or (found.server is None and len(self._servers) == 1)

    def _marks(self) -> str:
        """How the description of an application that no bot has used yet begins."""
        return f"[DEPLOYING] Made by botpool {self._installation} for slot "

    def _slot_id(self, found: Application) -> int | None:
        """The slot that an unused application was made for, by its description."""
        before, marks, after = (found.description or "").partition(self._marks())
        number = after.partition(" ")[0]
        return int(number) if marks and not before and number.isdecimal() else None

    async def _create(self, spec: ContainerSpec, mark: str) -> str:
        fields = await self._fields(spec)
        if spec.host in await self._view.swarm():
            raise EngineRefused(
                f"The server {spec.host} is part of a Docker Swarm, where Coolify can't show that a"
                " container has stopped: use one that is not."
            )
        destination = self._servers[spec.host]
        version = await self._version.get()
        return await self._api.create_application(
            {
                **await self._place.get(),
                "server_uuid": spec.host,
                **({"destination_uuid": destination} if destination else {}),
                "name": spec.slot_name,
                "description": mark[:_LONGEST_DESCRIPTION],
                **({} if version >= _NO_PORTS_SINCE else {"ports_exposes": "80"}),
                "instant_deploy": False,
                **fields,
            }
        )

    async def _adapt(self, spec: ContainerSpec, uuid: str) -> str:
        """Let an application be as a spec says, from its next start on."""
        if not await self._api.change_application(uuid, await self._fields(spec)):
            raise ContainerMissing(f"The application {uuid} is gone.")
        return uuid

    async def _fields(self, spec: ContainerSpec) -> dict[str, object]:
        """What an application is made of and can be changed: those fields that this Coolify has."""
        if not spec.image:
            raise NoImage(f"{spec.slot_name} has no image: set the image of its platform.")
        name, tag = split_image(spec.image)
        version = await self._version.get()
        fields: dict[str, object] = {
            "docker_registry_image_name": name,
            "docker_registry_image_tag": tag,
            **_limits(self._options.get(spec.platform, DockerOptions())),
        }
        if version >= _KEEPS_IMAGES_SINCE:
            # Its clean-up takes every image for one of this name whose reference begins like that.
            alike = {image for image in {*self._images, spec.image} if image.startswith(name)}
            fields["docker_images_to_keep"] = len(alike) + _KEPT_BESIDE_OURS
        if version >= _GRACE_SINCE and self._grace is not None:
            fields["stop_grace_period"] = self._grace
        if version >= _TAGS_SINCE:
            fields["tags"] = ["botpool"]
        if version >= _NAMES_SINCE:
            # No two of its containers run at once, and the clean-up knows the image of one.
            fields["is_consistent_container_name_enabled"] = True
        return fields

    async def _read_version(self) -> Version:
        return version_number(await self._api.version())

    async def _read_place(self) -> dict[str, object]:
        """Where applications are created. Without a public domain, if this Coolify can do that."""
        environments = await self._api.environments(self._project)
        uuids = [each.uuid for each in environments or [] if each.name == self._environment]
        place: dict[str, object] = {
            "project_uuid": self._project,
            "environment_name": self._environment,
        }
        if uuids and uuids[0]:
            place["environment_uuid"] = uuids[0]
        if await self._version.get() >= _NO_DOMAIN_SINCE:
            place["autogenerate_domain"] = False
        return place

    async def _describe(self, uuid: str) -> None:
        """Send the newest description of an application, once the budget lets it through."""
        sent: list[str] = []

        def text() -> str:
            sent.append(self._texts.get(uuid, ""))
            return sent[-1]

        await self._api.describe(uuid, text)
        if self._texts.get(uuid) == sent[-1]:
            del self._texts[uuid]

    async def _deployment_under_way(self, uuid: str) -> str | None:
        newest = await self._view.newest_of(uuid) or ()
        return next((one.deployment_uuid for one in newest if one.active), None)

    async def _running(self, uuid: str) -> str | None:
        """`running` if a container runs now, whatever the statuses say."""
        return None if await self._api.logs(uuid, 1) is None else "running"

    async def _was_up(self, uuid: str) -> bool:
        """Whether a list shows that the application is up. A stop doesn't depend on it."""
        try:
            return await self._view.was_up(uuid)
        except EngineUnavailable:
            return False

    async def _keeps_deploying(self, uuid: str) -> bool:
        """Cancel queued deployments, and return whether one is under way, as far as is known."""
        under_way = False
        try:
            active = await self._view.deployments_of(uuid, recent=False)
        except EngineUnavailable:
            active = ()
        for deployment in active:
            if deployment.queued:
                await self._api.cancel(deployment.deployment_uuid)
            else:
                under_way = True
        self._view.changed(uuid)
        return under_way

    async def _watch(self, container: Container, deployment: str) -> Observation:
        """The state of a deployment, and of what it started."""
        uuid = container.ref
        found = await self._view.deployment(uuid, deployment)
        if found is None:
            # It is over, or was never made. Mostly the bot is heard next, and nobody has to ask.
            if self._over_for(uuid, deployment) < _WORD_SECONDS:
                detail = f"deployment {deployment} is not under way any more"
                return Observation(
                    state=ContainerState.STARTING, detail=detail, deployment=deployment
                )
            found = await self._api.deployment(deployment)
        if found is not None and found.status != "finished":
            state = ContainerState.STARTING if found.active else ContainerState.FAILED
            detail = f"deployment {deployment} is {found.status}"
            return Observation(state=state, detail=detail, deployment=deployment)
        application = await self._view.application(uuid)
        if application is None:
            self._forget(uuid)
            return Observation(state=ContainerState.MISSING)
        await self._view.check(container.host)
        if application.state in EXITED and await self._running(uuid):
            return Observation(state=ContainerState.RUNNING, detail="finished and running")
        if application.state in EXITED and found is None:
            detail = f"Coolify never made the deployment {deployment}: its queue was full"
            return Observation(state=ContainerState.CREATED, detail=detail)
        seen = _observation(application)
        # One that Docker keeps restarting has ended by itself since.
        restarting = application.state == "restarting"
        return replace(seen, state=ContainerState.EXITED) if restarting else seen

    def _over_for(self, uuid: str, deployment: str) -> float:
        """For how many seconds we have known that a deployment is not under way (any more)."""
        now = asyncio.get_running_loop().time()
        known, since = self._over_since.setdefault(uuid, (deployment, now))
        if known != deployment:
            self._over_since[uuid] = deployment, now
            return 0.0
        return now - since

    async def _proved(self, application: Application, stop: _Stop) -> Observation:
        """What the lists prove since our stop. The head of this module says why."""
        uuid = application.uuid
        for deployment in await self._view.deployments_of(uuid):
            self._stops.pop(uuid, None)
            return _under_way(deployment)
        seen = _observation(application)
        exited = application.state in EXITED
        if await self._version.get() >= _WRITES_EXITED_SINCE and (stop.was_up or not exited):
            return seen
        if exited and not stop.was_up and not await self._view.newest_of(uuid):
            return Observation(state=ContainerState.CREATED, detail=seen.detail)
        if exited:
            apart = 0.0
        elif application.state == "restarting":
            apart = _RESTARTS_APART_SECONDS
        else:
            apart = _SILENCES_APART_SECONDS
        detail = f"status {seen.detail}, and nothing runs"
        now = asyncio.get_running_loop().time()
        if stop.stale == application.status and now < stop.stale_until:
            return Observation(state=ContainerState.EXITED, detail=detail)
        if await self._silent_for(uuid, stop, apart):
            stop.stale, stop.stale_until = application.status, now + _STALE_SECONDS
            return Observation(state=ContainerState.EXITED, detail=detail)
        detail = f"status {seen.detail}, and not known to have stopped"
        return Observation(state=ContainerState.RUNNING, detail=detail)

    async def _silent_for(self, uuid: str, stop: _Stop, seconds: float) -> bool:
        """Whether Coolify has found no running container, twice if `seconds` is not 0.

        One that still runs is asked for less and less often.
        """
        now = asyncio.get_running_loop().time()
        if now < stop.ask_at:
            return False
        # If the status is not `exited`, it mostly runs on for a while.
        if seconds and now < stop.at + _SILENCES_APART_SECONDS:
            return False
        if await self._running(uuid):
            stop.silent_since = None
            stop.ask_at = now + max(_SILENCES_APART_SECONDS, (now - stop.at) / 2)
            return False
        if stop.silent_since is None:
            stop.silent_since = now
        stop.ask_at = stop.silent_since + seconds
        return now >= stop.ask_at

    async def _examined(self, uuid: str, seen: Observation) -> Observation:
        """What was seen, unless the status says stopped and that is not true.

        We have not stopped it, so the lists prove nothing: it is asked for by itself.
        """
        if seen.state is not ContainerState.EXITED:
            return seen
        newest = await self._view.newest_of(uuid)
        if newest is None:
            raise EngineUnavailable(f"Coolify doesn't list the deployments of {uuid}.")
        for deployment in newest:
            if deployment.active:
                return _under_way(deployment)
        if not newest:
            return Observation(state=ContainerState.CREATED, detail=seen.detail)
        if await self._running(uuid):
            return Observation(
                state=ContainerState.RUNNING, detail=f"status {seen.detail}, but still running"
            )
        return seen


def _under_way(deployment: Deployment) -> Observation:
    ref = deployment.deployment_uuid
    detail = f"deployment {ref} is {deployment.status}"
    return Observation(state=ContainerState.STARTING, detail=detail, deployment=ref)


def _limits(options: DockerOptions) -> dict[str, object]:
    limits: dict[str, object] = {}
    run_options = ["--init"]
    if options.cpus is not None:
        limits["limits_cpus"] = f"{options.cpus:g}"
    if options.memory is not None:
        limits["limits_memory"] = f"{max(1, options.memory // _MEGABYTE)}m"
    if options.shm_size is not None:
        run_options.append(f"--shm-size={max(1, options.shm_size // _MEGABYTE)}m")
    return {**limits, "custom_docker_run_options": " ".join(run_options)}


def _observation(found: Application) -> Observation:
    state = _STATES.get(found.state, ContainerState.STARTING)
    return Observation(state=state, detail=found.status or "")


def _looks_ours(found: Application) -> bool:
    return (
        read_slot_name(found.name) is not None
        and _DESCRIPTION.match(found.description or "") is not None
    )
