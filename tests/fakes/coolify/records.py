"""What Coolify keeps: servers, applications with their variables, and deployments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tests.fakes.coolify.containers import ContainerState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from tests.fakes.coolify.containers import RunningContainer

EXITED = "exited:unhealthy"
RESTARTING = "restarting:unknown"
STARTING = "starting:unknown"
PAUSED = "paused:unknown"
DEGRADED = "degraded:unhealthy"

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class DeploymentFailed(Exception):
    """A deployment ended without a new container."""


class DeploymentStatus(StrEnum):
    """From `queued` over `in_progress` to one of the others, for good."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled-by-user"


ACTIVE = frozenset({DeploymentStatus.QUEUED, DeploymentStatus.IN_PROGRESS})


@dataclass(eq=False)
class Server:
    """A host with Docker. `images` are those on its disk."""

    uuid: str
    number: int
    settings: dict[str, Any]
    reachable: bool = True
    images: set[str] = field(default_factory=set)
    next_look: float = 0.0
    """When Coolify looks at its containers again."""

    @property
    def ip(self) -> str:
        return f"10.0.0.{self.number}"

    @property
    def swarm(self) -> bool:
        return bool(self.settings["is_swarm_manager"] or self.settings["is_swarm_worker"])


@dataclass(eq=False)
class Variable:
    """A variable of an application. One for previews is in no container here."""

    uuid: str
    key: str
    value: str
    is_preview: bool = False
    is_literal: bool = False
    is_multiline: bool = False
    is_shown_once: bool = False
    is_runtime: bool = True
    is_buildtime: bool = True


@dataclass(eq=False)
class Application:
    """An application, with its containers: two while one replaces the other."""

    uuid: str
    number: int
    """The key in Coolify's database, which only deployments show."""
    server_uuid: str
    created: dict[str, Any]
    """What it was created with, as it was asked for."""
    fields: dict[str, Any]
    """What it is made of now."""
    created_at: float
    variables: list[Variable] = field(default_factory=list)
    containers: list[RunningContainer] = field(default_factory=list)
    deployments: list[Deployment] = field(default_factory=list, repr=False)
    history: list[tuple[float, str]] = field(default_factory=lambda: [(float("-inf"), EXITED)])
    """What Coolify says of its status, and from when on."""
    gave_up: bool = False
    """Coolify stops it, because Docker has restarted it too often."""

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def description(self) -> str | None:
        description: str | None = self.fields.get("description")
        return description

    @property
    def image(self) -> str:
        name = str(self.fields["docker_registry_image_name"])
        tag = str(self.fields.get("docker_registry_image_tag") or "latest")
        return f"{name}@{tag}" if tag.startswith("sha256:") else f"{name}:{tag}"

    @property
    def limits(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if name.startswith("limits_")}

    @property
    def environment(self) -> Mapping[str, str]:
        """Its variables as they were set, whatever a container has of them."""
        return {one.key: one.value for one in self.variables if not one.is_preview}

    @property
    def status(self) -> str:
        """What is true now, of all its containers together."""
        states = {container.state for container in self.containers}
        if ContainerState.RESTARTING in states:
            return RESTARTING
        if ContainerState.DEAD in states:
            return DEGRADED
        if ContainerState.CREATED in states:
            return STARTING
        if ContainerState.RUNNING in states:
            healths = {container.health for container in self.containers}
            worst = next(each for each in ("unhealthy", "unknown", "healthy") if each in healths)
            return f"running:{worst}"
        return PAUSED if ContainerState.PAUSED in states else EXITED

    @property
    def running(self) -> bool:
        return self.status.startswith("running:")

    @property
    def consistent_name(self) -> bool:
        """Whether its container has its uuid as name, so that there is one at a time."""
        return bool(self.fields.get("is_consistent_container_name_enabled"))

    @property
    def restart_count(self) -> int:
        return self.containers[-1].restart_count if self.containers else 0

    def status_at(self, time: float) -> str:
        """What Coolify says at a time."""
        return next(status for since, status in reversed(self.history) if since <= time)

    def container_environment(self, container_name: str) -> dict[str, str]:
        """What a container started now has. Raises `DeploymentFailed` for what can't be quoted."""
        known = self.environment
        environment = self._injected()
        for one in self.variables:
            if one.is_preview or not one.is_runtime:
                continue
            value = one.value
            if not one.is_literal:
                value = _REFERENCE.sub(lambda name: known.get(name[1] or name[2], ""), value)
            elif "'" in value:
                raise DeploymentFailed(f"{one.key} holds a quote.")
            environment[one.key] = value
        environment["COOLIFY_RESOURCE_UUID"] = self.uuid
        environment["COOLIFY_CONTAINER_NAME"] = container_name
        return environment

    def _injected(self) -> dict[str, str]:
        """What Coolify adds by itself, unless a variable has that name."""
        domain = str(self.fields.get("domains") or "")
        port = str(self.fields.get("ports_exposes") or "").partition(",")[0]
        return {
            "COOLIFY_BRANCH": "main",
            "COOLIFY_FQDN": domain.partition("://")[2],
            "COOLIFY_URL": domain,
            "HOST": "0.0.0.0",  # noqa: S104 - Coolify's own
            "SOURCE_COMMIT": "HEAD",
            **({"PORT": port} if port else {}),
        }


@dataclass(eq=False)
class Deployment:
    """One run of pull and start. Times are the event loop's."""

    uuid: str
    number: int
    application: Application = field(repr=False)
    status: DeploymentStatus
    created_at: float
    updated_at: float
    instant: bool = False
    """It goes round the server's limit of concurrent builds."""
    finished_at: float | None = None
    detail: str = ""
    preparing: asyncio.Future[tuple[str, dict[str, str]]] | None = field(default=None, repr=False)

    @property
    def application_uuid(self) -> str:
        return self.application.uuid

    @property
    def server_uuid(self) -> str:
        return self.application.server_uuid


@dataclass
class Request:
    """A request to the API. `status` is None while, or if ever, it has no answer."""

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    at: float
    status: int | None = None
    fault: str | None = None
    """Which of `Faults` happened to it."""
