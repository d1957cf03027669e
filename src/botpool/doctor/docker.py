"""The engine `docker`: each host, its network, its images and its disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiodocker import DockerError

from botpool.doctor.findings import Report
from botpool.doctor.folders import check_disk, is_folder
from botpool.doctor.hosts import examine_lost_slots, examine_room
from botpool.engines.docker import api as docker_api
from botpool.engines.docker.engine import docker_hosts
from botpool.errors import EngineUnavailable
from botpool.states import Platform

if TYPE_CHECKING:
    from aiodocker import Docker

    from botpool.doctor.database import Known
    from botpool.doctor.findings import Finding
    from botpool.settings import Settings

_START = "Start Docker there, or correct BOTPOOL_DOCKER_HOSTS."
_JOIN = "Add the user that runs botpool to the group `docker`, so that it may use Docker's socket."
_SECONDS = 10.0


async def examine_docker(report: Report, settings: Settings, known: Known | None) -> None:
    """Check every host, all at once."""
    hosts: dict[str, str | None] = {}
    async with report.check("hosts", "Correct BOTPOOL_DOCKER_HOSTS."):
        hosts = docker_hosts(settings.docker_hosts)
    if not hosts:
        return
    examined = await asyncio.gather(
        *(_examine_host(host, address, settings) for host, address in hosts.items())
    )
    for findings in examined:
        report.findings += findings
    await examine_room(report, settings, len(hosts))
    await examine_lost_slots(report, "docker", hosts, known, "BOTPOOL_DOCKER_HOSTS")


async def _examine_host(host: str, address: str | None, settings: Settings) -> list[Finding]:
    report = Report("docker")
    client: Docker | None = None
    version: dict[str, Any] | None = None
    try:
        async with report.check("host", _START, seconds=_SECONDS) as check:
            try:
                with docker_api.mapped_errors(host):
                    client = docker_api.open_client(address)
                    version = await client.version()
                    check.ok(f"{host}: {_product(version)} {version['Version']}")
            except EngineUnavailable as error:
                version = None
                check.problem(str(error), _JOIN if _is_barred(error) else _START)
        if client is not None and version is not None:
            await _examine_network(report, host, client, settings.docker_network, version)
            await _examine_images(report, host, client, settings)
            await _examine_disk(report, host, client)
    finally:
        if client is not None:
            await client.close()
    return report.findings


async def _examine_network(
    report: Report, host: str, client: Docker, network: str, version: dict[str, Any]
) -> None:
    async with report.check("network", _START, seconds=_SECONDS) as check:
        # Podman accepts these names although it has no such networks.
        built_in = {"default", *(["bridge", "host"] if _product(version) == "Podman" else [])}
        if network == "none":
            check.problem(
                "Containers without a network can't reach botpool",
                "Set BOTPOOL_DOCKER_NETWORK to `bridge`, or to your own network.",
            )
        elif network.startswith("container:"):
            check.not_checked(f"{host}: the network of {network.removeprefix('container:')}")
        elif network in built_in or await _has_network(client, host, network):
            check.ok(f"{host}: {network}")
        else:
            check.problem(
                f"{host} has no network {network}",
                f"Run `docker network create {network}` there, or correct BOTPOOL_DOCKER_NETWORK.",
            )


async def _has_network(client: Docker, host: str, network: str) -> bool:
    with docker_api.mapped_errors(host):
        try:
            await (await client.networks.get(network)).show()
        except DockerError as error:
            if error.status == docker_api.NOT_FOUND:
                return False
            raise
    return True


async def _examine_images(report: Report, host: str, client: Docker, settings: Settings) -> None:
    images = {settings.image(platform) for platform in Platform} - {None}
    for image in sorted(str(image) for image in images):
        async with report.check("image on host", seconds=_SECONDS) as check:
            with docker_api.mapped_errors(host):
                there = await docker_api.has_image(client, image)
            if there:
                check.ok(f"{host} has {image}")
            else:
                check.warning(
                    f"{host} doesn't have {image} yet: the first bot waits until it is pulled",
                    f"Run `docker pull {image}` there, or let the first bot wait.",
                )


async def _examine_disk(report: Report, host: str, client: Docker) -> None:
    """Check the disk of Docker's files, if Docker is on this machine.

    Docker says where its files are, but not how much room their disk has.
    """
    async with report.check("disk", seconds=_SECONDS) as check:
        with docker_api.mapped_errors(host):
            root = Path((await client.system.info()).get("DockerRootDir") or "/nowhere")
        if client.docker_host.startswith("unix:") and is_folder(root):
            check_disk(check, root, "Free some space: `docker system df` shows what uses it.")


def _product(version: dict[str, Any]) -> str:
    components = version.get("Components") or []
    podman = any("podman" in str(part.get("Name", "")).lower() for part in components)
    return "Podman" if podman else "Docker"


def _is_barred(error: BaseException | None) -> bool:
    """Whether the cause is a socket that this user may not use."""
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__ or error.__context__
    return False
