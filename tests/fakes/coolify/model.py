"""Coolify's state, and what happens in it by itself: deployments, stops, deletions, containers.

Every method that is not a coroutine takes effect at once, as one step; what takes time goes on in
the background.
"""

from __future__ import annotations

import asyncio
import random
import string
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fakes.coolify.background import Background
from tests.fakes.coolify.cleanup import swept
from tests.fakes.coolify.containers import ALIVE, ContainerState, RunningContainer
from tests.fakes.coolify.records import (
    ACTIVE,
    EXITED,
    Application,
    Deployment,
    DeploymentFailed,
    DeploymentStatus,
    Request,
    Server,
    Variable,
)
from tests.fakes.coolify.rules import Version, beta
from tests.fakes.coolify.workers import Workers

if TYPE_CHECKING:
    from tests.fakes.coolify.containers import Containers
    from tests.fakes.coolify.rules import Rules
    from tests.fakes.coolify.workers import Work

_FIRST_WITH_RETENTION = beta(453)
_FIRST_WITH_CLEANUP_CHOICE = beta(467)
_FIRST_WITH_RESTART_LIMIT = Version(4, 3, 0)
_FIRST_THAT_WRITES_STOPS = Version(4, 3, 3)
_MOST_RESTARTS = 10

_SERVER_SETTINGS: dict[str, Any] = {
    "delete_unused_networks": False,
    "delete_unused_volumes": False,
    "disable_application_image_retention": False,
    "docker_cleanup_frequency": "0 0 * * *",
    "docker_cleanup_threshold": 80,
    "dynamic_timeout": 3600,
    "force_disabled": False,
    "force_docker_cleanup": True,
    "is_build_server": False,
    "is_sentinel_enabled": True,
    "is_swarm_manager": False,
    "is_swarm_worker": False,
    "server_timezone": "UTC",
}


class Queued(NamedTuple):
    """What came of a wish to deploy: `queued`, `skipped` or `queue_full`."""

    outcome: str
    message: str
    deployment: Deployment | None = None


class Model:
    """One Coolify with one team, one project and one environment."""

    def __init__(self, rules: Rules, containers: Containers, seed: int) -> None:
        self.rules = rules
        self._inside = containers
        self._random = random.Random(f"names {seed}")  # noqa: S311 - it is to be repeatable
        self._background = Background()
        self._workers = Workers(self._background, lambda: self.rules.workers)
        self._numbers: Counter[str] = Counter()
        self._pulling: Counter[tuple[str, str]] = Counter()
        self.project_uuid = self.new_uuid()
        self.environment_uuid = self.new_uuid()
        self.environment_name = "production"
        self.destinations = {server: self.new_uuid() for server in rules.servers}
        self.servers = {
            uuid: Server(
                uuid,
                number,
                _SERVER_SETTINGS
                | {
                    "concurrent_builds": rules.concurrent_builds,
                    "deployment_queue_limit": rules.deployment_queue_limit,
                }
                | dict(rules.server_settings),
            )
            for number, uuid in enumerate(rules.servers, 1)
        }
        self.applications: dict[str, Application] = {}
        self.deployments: dict[str, Deployment] = {}
        self.active: list[Deployment] = []
        """Those that are queued or in progress, in their order."""
        self.containers: list[RunningContainer] = []
        """All of them, those included that Coolify has lost sight of."""
        self.pulls: Counter[tuple[str, str]] = Counter()
        self.most_pulls: Counter[tuple[str, str]] = Counter()
        self.built: dict[str, float] = {}
        """When images were built; those that are not named, in the order of their pulls."""
        self.started: Counter[str] = Counter()
        self.requests: list[Request] = []
        self.registry_answers = True
        """While it does not, every deployment fails, one with the image on the server included."""
        self.unknown_images: set[str] = set()
        """Images that the registry has not, or not for us."""
        self.ruined: set[str] = set()
        """Applications whose deployments always fail."""
        self.killed: list[str] = []
        """The servers on which some process was killed."""

    def new_uuid(self) -> str:
        """As Coolify's look."""
        return "".join(self._random.choices(string.ascii_lowercase + string.digits, k=24))

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def running(self, server: str | None = None) -> list[str]:
        """The applications of which a container really runs now, orphans included."""
        return [
            *dict.fromkeys(
                container.application_uuid
                for container in self.containers
                if container.state in ALIVE and server in {None, container.server_uuid}
            )
        ]

    async def idle(self) -> None:
        """Wait until every deployment, stop and deletion is over."""
        await self._workers.idle()

    async def close(self) -> None:
        """End every task and process. Raises an `ExceptionGroup` of what failed by itself."""
        await self._background.close()

    # What a client asks for

    def create_application(
        self, server: str, created: dict[str, Any], fields: dict[str, Any]
    ) -> Application:
        """Add one that runs nothing."""
        uuid = self.new_uuid()
        fields = {"name": f"docker-image-{uuid}", **fields}
        application = Application(
            uuid, self._number("application"), server, created, fields, self.now
        )
        self.applications[uuid] = application
        return application

    def add_variable(self, application: Application, variable: Variable) -> None:
        """Add a variable, and as Coolify does a copy for previews, unless there is one."""
        application.variables.append(variable)
        if not variable.is_preview and not any(
            one.is_preview and one.key == variable.key for one in application.variables
        ):
            copied = {**vars(variable), "uuid": self.new_uuid(), "is_preview": True}
            application.variables.append(Variable(**copied))

    def queue_deployment(
        self, application: Application, *, force: bool = False, instant: bool = False
    ) -> Queued:
        """Add a deployment, unless the queue is full or one of the application is under way."""
        server = self.servers[application.server_uuid]
        queued = [
            one
            for one in self.active
            if one.server_uuid == server.uuid and one.status is DeploymentStatus.QUEUED
        ]
        if len(queued) >= server.settings["deployment_queue_limit"]:
            return Queued(
                "queue_full",
                "Deployment queue is full. Please wait for existing deployments to complete.",
            )
        if any(one.application is application for one in self.active) and not (force or instant):
            return Queued("skipped", "Deployment already queued for this commit.")
        deployment = Deployment(
            self.new_uuid(),
            self._number("deployment"),
            application,
            DeploymentStatus.QUEUED,
            self.now,
            self.now,
            instant,
        )
        self.deployments[deployment.uuid] = deployment
        application.deployments.append(deployment)
        self.active.append(deployment)
        application.gave_up = False
        self._dispatch()
        return Queued("queued", "Deployment request queued.", deployment)

    def cancel_deployment(self, deployment: Deployment) -> bool:
        """Let it be over, unless it is; a container that it started runs on.

        To end one in progress, Coolify kills a process on the server by a number that was one of
        its own container's: any process may have it there.
        """
        if deployment.status is DeploymentStatus.IN_PROGRESS:
            self.killed.append(deployment.server_uuid)
        return self._abort(deployment, DeploymentStatus.CANCELLED)

    def queue_stop(self, application: Application, *, cleanup: bool) -> None:
        """Let a worker stop the containers. No deployment is cancelled by that."""
        if self.rules.release < _FIRST_WITH_CLEANUP_CHOICE:
            cleanup = True
        self._queue_job("stop", partial(self._stop, application, cleanup=cleanup))

    def queue_deletion(self, application: Application, *, cleanup: bool) -> None:
        """Let a worker delete it."""
        self._queue_job("delete", partial(self._delete, application, cleanup=cleanup))

    def shown_status(self, application: Application) -> str:
        """What Coolify says of an application."""
        self._look(self.servers[application.server_uuid])
        return application.status_at(self.now)

    # What happens behind a client's back

    async def remove_application(self, uuid: str) -> None:
        """Delete it, as in the dashboard, without a wait for a worker."""
        await self._remove(self.applications[uuid])

    async def start_by_hand(self, uuid: str) -> str | None:
        """Press the button that deploys. Returns the deployment's uuid, if there is one."""
        deployment = self.queue_deployment(self.applications[uuid]).deployment
        return deployment.uuid if deployment else None

    async def stop_by_hand(self, uuid: str) -> None:
        """Press the button that stops, and wait until it has."""
        await self._stop_now(self.applications[uuid])

    async def restart_coolify(self) -> None:
        """Let every active deployment be failed. Containers don't notice."""
        for deployment in [*self.active]:
            self._abort(deployment, DeploymentStatus.FAILED)

    async def drop_images(self, server: str) -> None:
        """Remove every image that no container uses."""
        self.servers[server].images &= {
            one.image for one in self.containers if one.server_uuid == server
        }

    async def clean_up_nightly(self, server: str) -> None:
        """Let the clean-up that is on a schedule run."""
        one = self.servers[server]
        used = {each.image for each in self.containers if each.server_uuid == server}
        if self.rules.release < _FIRST_WITH_RETENTION:
            one.images &= used
            return
        applications = [each for each in self.applications.values() if each.server_uuid == server]
        one.images -= swept(one, applications, self.built) - used

    async def set_reachable(self, server: str, reachable: bool) -> None:
        """Let Coolify lose a server, or find it again. What runs there runs on."""
        self.servers[server].reachable = reachable
        for application in self.applications.values():
            if application.server_uuid == server:
                self._write(application, application.status if reachable else EXITED)

    async def set_state(self, uuid: str, state: ContainerState) -> None:
        """Let Docker say this of an application's containers, whatever happens in them."""
        for container in self.applications[uuid].containers:
            self._become_container(container, state)

    async def set_health(self, uuid: str, health: str) -> None:
        """Let health checks of an application say this: `healthy`, `unhealthy` or `unknown`."""
        application = self.applications[uuid]
        self._look(self.servers[application.server_uuid])
        for container in application.containers:
            container.health = health
        self._look(self.servers[application.server_uuid])

    # What goes on by itself

    def _number(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def _queue_job(self, kind: str, work: Work) -> None:
        self._workers.add(f"{kind} {self._number('job')}", work)

    def _look(self, server: Server) -> None:
        """Let Coolify look at a server, if it was due to by now.

        This is called before anything changes, so Coolify sees what was there when it was due.
        """
        if self._background.closed or self.now < server.next_look:
            return
        period = self.rules.sync_seconds
        server.next_look = (self.now // period + 1) * period if period else self.now
        self._see(server)

    def _see(self, server: Server) -> None:
        """Write down what containers a server has, unless it has none at all."""
        there = any(one.server_uuid == server.uuid for one in self.containers)
        if not there or not server.reachable:
            return
        for application in [*self.applications.values()]:
            if application.server_uuid == server.uuid:
                if application.history[-1][1] != application.status:
                    at = self.now + self.rules.status_lag_seconds
                    application.history.append((at, application.status))
                self._give_up(application)

    def _write(self, application: Application, status: str) -> None:
        """Let Coolify say this from now on, whatever it has seen."""
        application.history.append((self.now, status))

    def _give_up(self, application: Application) -> None:
        """Stop what was restarted too often."""
        limit = application.fields.get("max_restart_count", _MOST_RESTARTS)
        if self.rules.release < _FIRST_WITH_RESTART_LIMIT or not limit or application.gave_up:
            return
        if application.restart_count >= limit:
            application.gave_up = True
            self.queue_stop(application, cleanup=True)

    def _become_container(self, container: RunningContainer, state: ContainerState) -> None:
        server = self.servers[container.server_uuid]
        self._look(server)
        container.state = state
        if state is ContainerState.EXITED:
            self.containers.remove(container)
            application = self.applications.get(container.application_uuid)
            if application is not None:
                application.containers.remove(container)
        self._look(server)

    def _become(self, deployment: Deployment, status: DeploymentStatus, detail: str = "") -> None:
        deployment.status = status
        deployment.updated_at = self.now
        deployment.detail = detail
        if status not in ACTIVE:
            deployment.finished_at = self.now
            self.active.remove(deployment)
            self._dispatch()

    def _abort(self, deployment: Deployment, status: DeploymentStatus) -> bool:
        if deployment.status not in ACTIVE:
            return False
        self._become(deployment, status)
        if deployment.preparing is not None:
            deployment.preparing.cancel()
        self._workers.withdraw(deployment.uuid)
        return True

    def _dispatch(self) -> None:
        """Let deployments be in progress as far as servers may. They may still wait for workers."""
        for deployment in [*self.active]:
            if deployment.status is DeploymentStatus.QUEUED and self._may_begin(deployment):
                self._become(deployment, DeploymentStatus.IN_PROGRESS)
                self._workers.add(deployment.uuid, partial(self._deploy, deployment))

    def _may_begin(self, deployment: Deployment) -> bool:
        under_way = [
            one
            for one in self.active
            if one.status is DeploymentStatus.IN_PROGRESS
            and one.server_uuid == deployment.server_uuid
        ]
        limit = self.servers[deployment.server_uuid].settings["concurrent_builds"]
        same = any(one.application is deployment.application for one in under_way)
        return deployment.instant or (not same and len(under_way) < limit)

    async def _deploy(self, deployment: Deployment) -> None:
        if deployment.status is not DeploymentStatus.IN_PROGRESS:
            return
        application = deployment.application
        preparing = asyncio.ensure_future(self._prepare(application))
        deployment.preparing = preparing
        try:
            await asyncio.wait([preparing])
        finally:
            preparing.cancel()
        if preparing.cancelled():
            return
        try:
            image, environment = preparing.result()
            self._reach(application)
        except DeploymentFailed as error:
            self._become(deployment, DeploymentStatus.FAILED, str(error))
            return
        replaced = [*application.containers]
        if application.consistent_name:
            await self._stop_containers(application)
        self._start_container(application, image, environment)
        grace = self._grace(application)
        await asyncio.gather(*(container.stop(grace) for container in replaced))
        if deployment.status is DeploymentStatus.IN_PROGRESS:
            self._become(deployment, DeploymentStatus.FINISHED)
            self._queue_job("look", partial(self._look_now, application.server_uuid))

    async def _look_now(self, server: str) -> None:
        self._see(self.servers[server])

    async def _prepare(self, application: Application) -> tuple[str, dict[str, str]]:
        """Pull the image, and return it and the environment as both were when this began."""
        self._reach(application)
        name = f"{application.uuid}-{self._random.randrange(10**11, 10**12)}"
        image = application.image
        environment = application.container_environment(
            application.uuid if application.consistent_name else name
        )
        await self._pull(self.servers[application.server_uuid], image)
        await asyncio.sleep(self.rules.start_seconds)
        return image, environment

    async def _pull(self, server: Server, image: str) -> None:
        if not self.registry_answers or image in self.unknown_images:
            raise DeploymentFailed(f"{image} can't be pulled.")
        if image in server.images:
            await asyncio.sleep(self.rules.check_seconds)
            return
        key = (server.uuid, image)
        self._pulling[key] += 1
        self.most_pulls[key] = max(self.most_pulls[key], self._pulling[key])
        try:
            await asyncio.sleep(self.rules.pull_seconds)
        finally:
            self._pulling[key] -= 1
        self.pulls[key] += 1
        server.images.add(image)
        self.built.setdefault(image, float(len(self.built)))

    def _reach(self, application: Application) -> None:
        if application.uuid not in self.applications:
            raise DeploymentFailed("The application is gone.")
        if application.uuid in self.ruined:
            raise DeploymentFailed("Its network can't be found.")
        if not self.servers[application.server_uuid].reachable:
            raise DeploymentFailed("Server is not functional.")

    def _start_container(
        self, application: Application, image: str, environment: dict[str, str]
    ) -> None:
        container = RunningContainer(
            name=environment["COOLIFY_CONTAINER_NAME"],
            application_uuid=application.uuid,
            server_uuid=application.server_uuid,
            image=image,
            environment=environment,
            become=self._become_container,
        )
        server = self.servers[application.server_uuid]
        self._look(server)
        self.started[application.uuid] += 1
        self.containers.append(container)
        application.containers.append(container)
        self._look(server)
        self._background.run(container.live(self._inside))

    async def _stop(self, application: Application, *, cleanup: bool) -> None:
        await asyncio.sleep(self.rules.stop_seconds)
        server = self.servers[application.server_uuid]
        if server.reachable:
            await self._stop_now(application)
            if cleanup:
                self._clean_up(server)

    async def _stop_now(self, application: Application) -> None:
        await self._stop_containers(application)
        self._look(self.servers[application.server_uuid])
        if self.rules.release >= _FIRST_THAT_WRITES_STOPS:
            self._write(application, EXITED)

    async def _stop_containers(self, application: Application) -> None:
        grace = self._grace(application)
        await asyncio.gather(*(container.stop(grace) for container in [*application.containers]))

    def _grace(self, application: Application) -> float:
        return float(application.fields.get("stop_grace_period") or self.rules.stop_grace_seconds)

    async def _delete(self, application: Application, *, cleanup: bool) -> None:
        await asyncio.sleep(self.rules.delete_seconds)
        await self._remove(application)
        if cleanup:
            self._clean_up(self.servers[application.server_uuid])

    async def _remove(self, application: Application) -> None:
        """Stop and forget it. On a server that can't be reached its containers run on."""
        if self.servers[application.server_uuid].reachable:
            await self._stop_containers(application)
        self.applications.pop(application.uuid, None)

    def _clean_up(self, server: Server) -> None:
        """Remove images that no container uses.

        From beta.453 to beta.466 Coolify keeps those of an application, except one that is known by
        its digest only. Later ones do, too; here they don't, because a client that asks for a
        cleanup by not refusing it can't count on that.
        """
        used = {one.image for one in self.containers if one.server_uuid == server.uuid}
        if _FIRST_WITH_RETENTION <= self.rules.release < _FIRST_WITH_CLEANUP_CHOICE:
            used |= {one.image for one in self.applications.values() if "@sha256:" not in one.image}
        server.images &= used
