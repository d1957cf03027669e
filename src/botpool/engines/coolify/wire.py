"""The parts of Coolify's answers that botpool uses, and its notation of versions and images."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict

from botpool.engines.images import read_image
from botpool.errors import EngineRefused

_NEWEST = Version("999999")


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ServerSettings(_Wire):
    """The settings of a server that matter to a pool."""

    is_reachable: bool | None = None
    is_usable: bool | None = None
    concurrent_builds: int | None = None
    deployment_queue_limit: int | None = None
    force_docker_cleanup: bool | None = None
    docker_cleanup_threshold: int | None = None
    disable_application_image_retention: bool | None = None
    is_swarm_manager: bool | None = None
    is_swarm_worker: bool | None = None


class Server(_Wire):
    """A machine that Coolify deploys to."""

    uuid: str
    name: str = ""
    is_reachable: bool | None = None
    is_usable: bool | None = None
    settings: ServerSettings | None = None

    @property
    def reachable(self) -> bool:
        """Whether Coolify says that it can reach the server, in any of the places where it may."""
        inner = self.settings or ServerSettings()
        said = (self.is_reachable, self.is_usable, inner.is_reachable, inner.is_usable)
        return all(word is not False for word in said)

    @property
    def swarm(self) -> bool:
        """Whether it is part of a Docker Swarm."""
        inner = self.settings or ServerSettings()
        return bool(inner.is_swarm_manager or inner.is_swarm_worker)


class _ServerName(_Wire):
    uuid: str


class Destination(_Wire):
    """A network of a server that applications are put on."""

    uuid: str | None = None
    server: _ServerName | None = None


class Application(_Wire):
    """What Coolify makes containers from."""

    uuid: str
    name: str = ""
    description: str | None = None
    status: str | None = None
    docker_registry_image_name: str | None = None
    docker_registry_image_tag: str | None = None
    destination: Destination | None = None

    @property
    def state(self) -> str:
        """The status without the health after its colon."""
        return (self.status or "exited").partition(":")[0]

    @property
    def server(self) -> str | None:
        """The uuid of its server, if Coolify says it."""
        if self.destination is None or self.destination.server is None:
            return None
        return self.destination.server.uuid

    @property
    def image(self) -> str | None:
        """Its image, as `name:tag`."""
        if not self.docker_registry_image_name:
            return None
        tag = self.docker_registry_image_tag or "latest"
        return f"{self.docker_registry_image_name}:{tag}"


class Deployment(_Wire):
    """One attempt to bring an application up."""

    deployment_uuid: str
    status: str
    deployment_url: str | None = None

    @property
    def application(self) -> str | None:
        """The uuid of its application, which stands in its address only."""
        found = re.search(r"/application/([^/]+)/", self.deployment_url or "")
        return found[1] if found else None

    @property
    def queued(self) -> bool:
        """Whether it has not begun."""
        return self.status == "queued"

    @property
    def active(self) -> bool:
        """Whether it may still start a container."""
        return self.queued or self.status == "in_progress"


class Environment(_Wire):
    """A part of a project."""

    name: str
    uuid: str | None = None


class Created(_Wire):
    """The uuid of something that was created."""

    uuid: str


class Started(_Wire):
    """The deployment that a start began."""

    deployment_uuid: str | None = None


class Logs(_Wire):
    """What a container wrote."""

    logs: str | None = None


class Deployments(_Wire):
    """The deployments of one application."""

    deployments: list[Deployment]


def version_number(version: str) -> Version:
    """A version that can be compared. A version that can't be read counts as the newest.

    A beta comes before its release: 4.0.0-beta.452 before 4.0.0.
    """
    try:
        return Version(version.strip())
    except InvalidVersion:
        return _NEWEST


def split_image(image: str) -> tuple[str, str]:
    """The name and the tag of an image. Raises `EngineRefused` for one pinned by its digest."""
    found = read_image(image)
    if found is None:
        raise EngineRefused(f"{image} is not the name of an image.")
    if found.digest is not None:
        raise EngineRefused(
            f"{image} is pinned by its digest, and Coolify's clean-up deletes such images: use a"
            " tag."
        )
    return found.repository, found.tag or "latest"
