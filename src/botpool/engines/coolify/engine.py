"""Containers of "docker image" applications on Coolify v4, on one or many servers.

A host is a server's uuid, and a container's reference is its application's uuid. Coolify's statuses
may be minutes old, its stops and deletions happen later than asked, and Docker restarts containers
that end by themselves. So a start is watched by its own deployment, and only three things together
prove a stop: the application's status is `exited`, no deployment of it is under way, and Coolify,
when asked for logs, finds no running container.
"""

from __future__ import annotations

import asyncio
import re
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
from botpool.engines.coolify.view import LIST_SECONDS, Shared, View
from botpool.engines.coolify.wire import split_image, version_number
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    EngineUnavailable,
    NoImage,
)
from botpool.models.slots import SlotName, read_slot_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from botpool.engines.base import ContainerSpec, PullProgress
    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.wire import Application
    from botpool.states import Platform

_STATES = {
    "running": ContainerState.RUNNING,
    "exited": ContainerState.EXITED,
    "stopped": ContainerState.EXITED,
    "degraded": ContainerState.FAILED,
    "error": ContainerState.FAILED,
}
"""With any other status, it is starting."""

_LONGEST_DESCRIPTION = 255
_NEWEST = 10
_STOP_AGAIN_SECONDS = 60.0
_PROOF_SECONDS = 10.0
_PATIENCE_SECONDS = 900.0
_KEEP_SECONDS = 3600.0
_NO_DOMAIN_SINCE = version_number("4.0.0-beta.454")
_MEGABYTE = 2**20

_DESCRIPTION = re.compile(r"\[(?:IDLE|DEPLOYING|BUSY|RELEASING|ERROR)\] ")


class SlotLike(NamedTuple):
    """An application that is named like a slot: `pool-zoom-007`, with or without a prefix."""

    application: Application
    container: Container
    named: SlotName


class CoolifyEngine:
    """The servers in `servers`, each with its destination, or None if it has only one.

    Applications are created in one environment of one project. Of the `options` of a platform they
    get the limits of CPUs, memory and shared memory. Without `bot_data`, a start leaves the
    environment unchanged, which saves a request. No list is read more often than every
    `list_seconds`.
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
        bot_data: bool = True,
        list_seconds: float = LIST_SECONDS,
    ) -> None:
        self.traits = Traits(
            lags=True,
            reusable=True,
            environment_at_start=bot_data,
            pulls_at_start=True,
            keeps_logs=False,
            one_api=True,
            patience_seconds=_PATIENCE_SECONDS,
        )
        self._api = api
        self._view = View(api, list_seconds)
        self._place = Shared(self._read_place, _KEEP_SECONDS)
        self._servers = dict(servers)
        self._project = project
        self._environment = environment
        self._installation = installation
        self._options = dict(options or {})
        # These only save requests: forgetting them does no harm.
        self._stopped_at: dict[str, float] = {}
        self._proved_at: dict[str, float] = {}

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
        mark = f"{self._marks()}{spec.slot_id} as {spec.name}"
        listed = await self._view.applications()
        made = [found for found in listed.values() if found.description == mark]
        if made:
            uuid = made[0].uuid
            if _STATES.get(made[0].state) is not ContainerState.EXITED:
                raise EngineRefused(f"{spec.slot_name} ({uuid}) is running.")
        else:
            uuid = await self._create(spec, mark)
        self._view.changed(uuid)
        if not await self._api.set_environment(uuid, {**spec.environment, REFERENCE: uuid}):
            raise EngineUnavailable(f"{uuid} was deleted while it was being created.")
        return uuid

    async def start(self, container: Container, environment: Mapping[str, str]) -> str:
        """Set the environment, have the application deployed, and return the deployment's uuid.

        Coolify may name a deployment that it never made. Then the newest deployment counts, if it
        is under way. If there is none, Coolify's queue was full.
        """
        self._check_host(container.host)
        uuid = container.ref
        now = asyncio.get_running_loop().time()
        if now - self._proved_at.pop(uuid, -_PROOF_SECONDS) >= _PROOF_SECONDS:
            running = await self._deployment_under_way(uuid) or await self._running(uuid)
            if running is not None:
                return running
        if environment and not await self._api.set_environment(
            uuid, {**environment, REFERENCE: uuid}
        ):
            raise ContainerMissing(f"The application {uuid} is gone.")
        self._stopped_at.pop(uuid, None)
        found, deployment = await self._api.start(uuid)
        self._view.changed(uuid)
        if not found:
            raise ContainerMissing(f"The application {uuid} is gone.")
        if deployment is not None and await self._api.deployment(deployment) is not None:
            return deployment
        newest = await self._deployment_under_way(uuid)
        if newest is None:
            raise EngineUnavailable(
                f"Coolify accepted the start of {uuid} but made no deployment: its queue is full."
            )
        return newest

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """The state of a deployment; without one, whether the application is proved stopped."""
        self._check_host(container.host)
        if deployment is not None:
            found = await self._view.deployment(deployment)
            if found is not None and found.status != "finished":
                state = ContainerState.STARTING if found.active else ContainerState.FAILED
                detail = f"deployment {deployment} is {found.status}"
                return Observation(state=state, detail=detail, deployment=deployment)
        application = await self._view.application(container.ref)
        if application is None:
            self._forget(container.ref)
            return Observation(state=ContainerState.MISSING)
        await self._view.check(container.host)
        seen = _observation(application)
        if deployment is None:
            seen = await self._proved(container.ref, seen)
            if seen.state in STOPPED:
                self._proved_at[container.ref] = asyncio.get_running_loop().time()
            return seen
        if seen.state is ContainerState.EXITED and await self._running(container.ref):
            return Observation(state=ContainerState.RUNNING, detail="finished and running")
        if application.state == "restarting":
            # It has ended by itself since, and Docker keeps restarting it.
            return Observation(state=ContainerState.EXITED, detail=seen.detail)
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
        if now - self._stopped_at.get(uuid, -_STOP_AGAIN_SECONDS) < _STOP_AGAIN_SECONDS:
            return
        under_way = False
        for deployment in await self._api.deployments_of(uuid, _NEWEST, Urgency.CHANGE) or ():
            if deployment.queued:
                await self._api.cancel(deployment.deployment_uuid)
            elif deployment.active:
                under_way = True
        if under_way:
            return
        if await self._api.stop(uuid):
            self._stopped_at[uuid] = now
        self._view.changed(uuid)

    async def remove(self, container: Container) -> None:
        """Have the application deleted. Raises `EngineRefused` if it isn't proved stopped."""
        observation = await self.observe(container)
        if observation.state not in STOPPED:
            raise EngineRefused(f"The application {container.ref} is {observation.state}.")
        await self._api.delete_application(container.ref)
        self._forget(container.ref)

    async def describe(self, container: Container, text: str) -> None:
        """Set the application's description."""
        await self._api.describe(container.ref, text[:_LONGEST_DESCRIPTION])

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines of a running container. Coolify has none of an ended one."""
        self._check_host(container.host)
        if lines <= 0:
            return []
        return await self._api.logs(container.ref, min(lines, 10_000)) or []

    async def close(self) -> None:
        """Close the connections."""
        await self._view.close()
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
        self._stopped_at.pop(uuid, None)
        self._proved_at.pop(uuid, None)

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
        if not spec.image:
            raise NoImage(f"{spec.slot_name} has no image: set the image of its platform.")
        name, tag = split_image(spec.image)
        destination = self._servers[spec.host]
        return await self._api.create_application(
            {
                **await self._place.get(),
                "server_uuid": spec.host,
                **({"destination_uuid": destination} if destination else {}),
                "docker_registry_image_name": name,
                "docker_registry_image_tag": tag,
                "name": spec.slot_name,
                "description": mark[:_LONGEST_DESCRIPTION],
                "ports_exposes": "80",
                "instant_deploy": False,
                **_limits(self._options.get(spec.platform, DockerOptions())),
            }
        )

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
        if version_number(await self._api.version()) >= _NO_DOMAIN_SINCE:
            place["autogenerate_domain"] = False
        return place

    async def _deployment_under_way(self, uuid: str) -> str | None:
        newest = await self._api.deployments_of(uuid, _NEWEST, Urgency.CHANGE) or ()
        active = [deployment.deployment_uuid for deployment in newest if deployment.active]
        return active[0] if active else None

    async def _running(self, uuid: str) -> str | None:
        """`running` if a container runs now, whatever the statuses say."""
        return None if await self._api.logs(uuid, 1) is None else "running"

    async def _proved(self, uuid: str, seen: Observation) -> Observation:
        """What was seen, unless the status says stopped and that is not true."""
        if seen.state is not ContainerState.EXITED:
            return seen
        newest = await self._api.deployments_of(uuid, _NEWEST)
        if newest is None:
            raise EngineUnavailable(f"Coolify doesn't list the deployments of {uuid}.")
        for deployment in newest:
            if deployment.active:
                self._stopped_at.pop(uuid, None)
                ref = deployment.deployment_uuid
                detail = f"deployment {ref} is {deployment.status}"
                return Observation(state=ContainerState.STARTING, detail=detail, deployment=ref)
        if not newest:
            return Observation(state=ContainerState.CREATED, detail=seen.detail)
        if await self._running(uuid):
            return Observation(
                state=ContainerState.RUNNING, detail=f"status {seen.detail}, but still running"
            )
        return seen


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
