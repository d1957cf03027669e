"""Containers on Docker Engine APIs, Podman's among them, one or many hosts.

A container's reference is its name. Its labels say which installation of botpool it belongs to, and
nothing here starts, stops or removes one of somebody else's, whatever its name.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiodocker import DockerError

from botpool.engines import docker_api
from botpool.engines.base import (
    REFERENCE,
    STOPPED,
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    Traits,
)
from botpool.engines.docker_credentials import registry_header
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
    NoImage,
    SettingsInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aiodocker import Docker

    from botpool.engines.base import ContainerSpec, PullProgress

_INSTALLATION = "botpool.installation"
_SLOT_ID = "botpool.slot-id"
_SLOT_NAME = "botpool.slot-name"

_LOG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
_WITHOUT_GATEWAY = ("host", "none", "container:")

_STATES = {
    "created": ContainerState.CREATED,
    "configured": ContainerState.CREATED,
    "initialized": ContainerState.STARTING,
    "restarting": ContainerState.STARTING,
    "running": ContainerState.RUNNING,
    "paused": ContainerState.RUNNING,
    "stopping": ContainerState.RUNNING,
    "exited": ContainerState.EXITED,
    "stopped": ContainerState.EXITED,
    "removing": ContainerState.EXITED,  # nothing is removed before it has ended
    "dead": ContainerState.EXITED,  # its removal failed half-way
}


def docker_hosts(setting: str | None) -> dict[str, str | None]:
    """The address of each host that the setting `docker_hosts` names, in its order.

    Without a setting it is one host, `local`, whose address is Docker's own default. Raises
    `SettingsInvalid`, which tells an entry by its number: an address may have a secret in it.
    """
    if setting is None:
        return {"local": None}
    hosts: dict[str, str | None] = {}
    for number, entry in enumerate(setting.split(","), start=1):
        where = f"Entry {number} of BOTPOOL_DOCKER_HOSTS"
        before, equals, after = entry.strip().partition("=")
        named = equals and "://" not in before
        address = after if named else entry.strip()
        host = _host_of(address, where)
        name = before if named else host
        if not name:
            raise SettingsInvalid(f"{where} has no name before its `=`: write one.")
        if name in hosts:
            raise SettingsInvalid(f"{where} is a second `{name}`: give it another name.")
        hosts[name] = address
    return hosts


def _host_of(address: str, where: str) -> str:
    """The host in an address, `local` for a socket. Raises if it is no address of Docker's."""
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        raise SettingsInvalid(f"{where} is no address: mend its host or port.") from None
    if url.scheme == "unix" and not url.netloc and url.path:
        return "local"
    if url.scheme not in {"tcp", "http", "https"} or not url.hostname:
        raise SettingsInvalid(f"{where} must be like `unix:///path` or `tcp://host:port`.")
    if "@" in url.netloc:
        raise SettingsInvalid(f"{where} has a user in its address: leave that out.")
    if url.scheme == "tcp" and port is None:
        raise SettingsInvalid(f"{where} has no port: write it after the host, as `:2376`.")
    return url.hostname


class DockerEngine:
    """The hosts in `hosts`, each with its address; None is wherever Docker's own client would look.

    Containers carry the name of the `installation`: it tells ours from those of another botpool on
    the same host. `memory` and `shm_size` are in bytes.
    """

    name = "docker"
    traits = Traits(environment_at_start=False)

    def __init__(
        self,
        hosts: Mapping[str, str | None],
        *,
        installation: str,
        network: str = "bridge",
        cpus: float | None = None,
        memory: int | None = None,
        shm_size: int | None = None,
    ) -> None:
        self._hosts = dict(hosts)
        self._installation = installation
        self._clients: dict[str, Docker] = {}
        self._host_config: dict[str, Any] = {
            # Reaps what a bot leaves behind, and hands the signal to end on to the bot.
            "Init": True,
            "LogConfig": _LOG,
            "NetworkMode": network,
            "RestartPolicy": {"Name": "no"},
        }
        if not network.startswith(_WITHOUT_GATEWAY):
            self._host_config["ExtraHosts"] = ["host.docker.internal:host-gateway"]
        if cpus is not None:
            self._host_config["NanoCpus"] = round(cpus * 1e9)
        if memory is not None:
            self._host_config["Memory"] = int(memory)
        if shm_size is not None:
            self._host_config["ShmSize"] = int(shm_size)

    def hosts(self) -> Sequence[str]:
        """The hosts in the order in which they were given."""
        return tuple(self._hosts)

    async def open_hosts(self) -> Sequence[str]:
        """All of them: one that is away is waited for."""
        return self.hosts()

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host, with the credentials that `docker login` has left here."""
        with self._docker(host) as client:
            if await docker_api.has_image(client, image):
                return False
            await docker_api.pull(client, image, await registry_header(image), progress)
            if not await docker_api.has_image(client, image):
                raise EngineUnavailable(f"Docker on {host} has pulled {image}, and has it not.")
        return True

    async def create(self, spec: ContainerSpec) -> str:
        """Make a container; one of ours that has its name and doesn't run makes way for it."""
        if not spec.image:
            raise NoImage(f"{spec.slot_name} has no image: set that of its platform.")
        config = self._config(spec)
        with self._docker(spec.host) as client:
            try:
                await client.containers.create(config, name=spec.name)
            except DockerError as error:
                is_missing = error.status == docker_api.NOT_FOUND
                if is_missing and not await docker_api.has_image(client, spec.image):
                    raise ImageMissing(f"{spec.image} is not on {spec.host}.") from error
                # A name that is taken has a status of its own with Docker, and none with Podman.
                await self._make_way(client, spec, error)
                await client.containers.create(config, name=spec.name)
        return spec.name

    async def start(self, container: Container, environment: Mapping[str, str]) -> str:
        """Start a container. Its environment is as it was created with: Docker can't add to it."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            address = self._hosts[container.host]
            # By its id: a start that comes late can't start what has since taken the name.
            started = found and await docker_api.start(address, client.api_version, found["Id"])
            if started is None:
                raise ContainerMissing(f"{container.ref} is not on {container.host}.")
            return f"{started['Id'][:12]}@{started['State']['StartedAt']}"

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the container is doing. One of somebody else's that has its name is `MISSING`."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            return _observation(found) if found else Observation(state=ContainerState.MISSING)

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end, and return when it has, or was forced to."""
        with self._docker(container.host) as client:
            if found := await self._own(client, container.ref):
                await docker_api.stop(client, found["Id"], math.ceil(grace_seconds))

    async def remove(self, container: Container) -> None:
        """Remove a container and its anonymous volumes. Raises `EngineRefused` if it runs."""
        with self._docker(container.host) as client:
            if found := await self._own(client, container.ref):
                await _remove(client, found)

    async def describe(self, container: Container, text: str) -> None:
        """Nothing: Docker has no place for it."""

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that a container has written, of both outputs, in their order."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            return await docker_api.logs(client, found["Id"], lines) if found else []

    async def close(self) -> None:
        """Close the connections to every host."""
        while self._clients:
            await self._clients.popitem()[1].close()

    # Last of them: from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of this installation on a host. Docker's list has no exit codes."""
        labels = [f"{_INSTALLATION}={self._installation}", _SLOT_ID]
        with self._docker(host) as client:
            return [
                ListedContainer(
                    container=Container(host, _name(found["Names"])),
                    slot_id=int(found["Labels"][_SLOT_ID]),
                    slot_name=found["Labels"][_SLOT_NAME],
                    observation=Observation(state=_state(found["State"]), detail=found["Status"]),
                )
                for found in await client.containers.list(all=True, filters={"label": labels})
            ]

    @contextmanager
    def _docker(self, host: str) -> Iterator[Docker]:
        """The client of a host, made when it is first used. Within, its errors become ours."""
        with docker_api.mapped_errors(host):
            if host not in self._hosts:
                raise EngineUnavailable(f"No host of the setting DOCKER_HOSTS is named {host}.")
            if host not in self._clients:
                self._clients[host] = docker_api.open_client(self._hosts[host])
            yield self._clients[host]

    def _config(self, spec: ContainerSpec) -> dict[str, Any]:
        environment = {**spec.environment, REFERENCE: spec.name}
        return {
            "Image": spec.image,
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {
                _INSTALLATION: self._installation,
                _SLOT_ID: str(spec.slot_id),
                _SLOT_NAME: spec.slot_name,
            },
            "HostConfig": self._host_config,
        }

    async def _own(self, client: Docker, ref: str) -> dict[str, Any] | None:
        """What Docker says of a container, None if it is not there or somebody else's."""
        found = await docker_api.inspect(client, ref)
        return found if found and _owner(found) == self._installation else None

    async def _make_way(self, client: Docker, spec: ContainerSpec, error: DockerError) -> None:
        """Remove the stopped container of ours that has the name. Raises if there is none."""
        found = await docker_api.inspect(client, spec.name)
        if found is None and error.status == docker_api.CONFLICT:
            raise EngineUnavailable(f"The name {spec.name} is not free yet.") from error
        if found is None:
            raise error
        if (owner := _owner(found)) != self._installation:
            whose = f"the botpool installation {owner}" if owner else "somebody else"
            raise EngineRefused(
                f"The name {spec.name} is taken on {spec.host} by a container of {whose}."
            ) from error
        await _remove(client, found)


def _owner(found: Mapping[str, Any]) -> str | None:
    """The installation that a container belongs to, if to any."""
    labels: Mapping[str, str] = found["Config"]["Labels"] or {}
    return labels.get(_INSTALLATION)


async def _remove(client: Docker, found: Mapping[str, Any]) -> None:
    if _observation(found).state not in STOPPED:
        name = found["Name"].removeprefix("/")
        raise EngineRefused(f"{name} runs, and is not removed before it is stopped.")
    await docker_api.delete(client, found["Id"])


def _name(names: Sequence[str]) -> str:
    """A container's own name: it also has those by which others link to it, `/other/alias`."""
    return next(name.removeprefix("/") for name in names if "/" not in name.removeprefix("/"))


def _observation(found: Mapping[str, Any]) -> Observation:
    said: Mapping[str, Any] = found["State"]
    state = _state(said["Status"])
    words = (said["Status"], "OOMKilled" if said.get("OOMKilled") else "", said.get("Error", ""))
    return Observation(
        state=state,
        exit_code=said["ExitCode"] if state is ContainerState.EXITED else None,
        detail=", ".join(word for word in words if word),
    )


def _state(status: str) -> ContainerState:
    if status not in _STATES:
        raise EngineUnavailable(f"Docker says `{status}` of a container, and botpool can't tell.")
    return _STATES[status]
