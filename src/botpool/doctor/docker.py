"""The engine `docker`: each host, its network, its images, its disk and its clock."""

from __future__ import annotations

import asyncio
import shutil
import tomllib
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aiodocker import DockerError

from botpool.doctor.clocks import check_clock, now
from botpool.doctor.docker_hosts import DockerHost
from botpool.doctor.docker_options import examine_options
from botpool.doctor.findings import Report
from botpool.doctor.folders import check_disk
from botpool.doctor.hosts import examine_lost_slots, examine_room
from botpool.engines.docker import api as docker_api
from botpool.engines.docker.credentials import registry_header
from botpool.engines.docker.engine import docker_hosts
from botpool.engines.images import read_image
from botpool.errors import EngineUnavailable
from botpool.states import Platform

if TYPE_CHECKING:
    from aiodocker import Docker

    from botpool.doctor.database import Known
    from botpool.doctor.findings import Check
    from botpool.models.diagnoses import Finding
    from botpool.settings import Settings

_START = "Start Docker there, or correct BOTPOOL_DOCKER_HOSTS."
_JOIN = "Add the user that runs botpool to the group `docker`, so that it may use Docker's socket."
_INSTALL_INIT = (
    "Install it there, or set docker.init = false in BOTPOOL_CONTAINER_FILE for images with their"
    " own."
)
_SECONDS = 30.0

_NO_INIT = "N/A"
_PODMAN_INIT = "catatonit"
_PODMAN_FOLDERS = (
    *("/usr/local/libexec/podman", "/usr/local/lib/podman", "/usr/libexec/podman"),
    *("/usr/lib/podman", "/usr/libexec/catatonit"),
)
_PODMAN_SETTINGS = (
    "/etc/containers/containers.conf",
    "/usr/share/containers/containers.conf",
)


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


async def _examine_host(name: str, address: str | None, settings: Settings) -> list[Finding]:
    report = Report("docker")
    client: Docker | None = None
    host: DockerHost | None = None
    try:
        asked = now()
        async with report.check("host", _START, seconds=_SECONDS) as check:
            try:
                with docker_api.mapped_errors(name):
                    client = docker_api.open_client(address)
                    version = await client.version()
                    asked = now()
                    info = await client.system.info()
                    host = DockerHost(name=name, client=client, version=version, info=info)
                    check.ok(f"{name}: {host.product} {version['Version']}")
            except EngineUnavailable as error:
                host = None
                check.problem(str(error), _JOIN if _is_barred(error) else _START)
        if host is not None:
            await _examine_clock(report, host, asked, now())
            await _examine_network(report, host, settings)
            await _examine_images(report, host, settings)
            await _examine_init(report, host, settings)
            await examine_options(report, host, settings)
            await _examine_disk(report, host)
    finally:
        if client is not None:
            await client.close()
    return report.findings


async def _examine_clock(
    report: Report, host: DockerHost, asked: datetime, answered: datetime
) -> None:
    async with report.check("clock") as check:
        theirs = host.info.get("SystemTime")
        if theirs:
            check_clock(check, host.name, datetime.fromisoformat(theirs), asked, answered)


async def _examine_network(report: Report, host: DockerHost, settings: Settings) -> None:
    networks = {options.network for options in settings.docker_options.values()}
    # Podman accepts these names although it has no such networks.
    built_in = {"default", *(["bridge", "host"] if host.is_podman else [])}
    for network in sorted(networks):
        async with report.check("network", _START, seconds=_SECONDS) as check:
            if network == "none":
                check.problem(
                    "Containers without a network can't reach botpool",
                    "Set BOTPOOL_DOCKER_NETWORK to `bridge`, or to your own network.",
                )
            elif network.startswith("container:"):
                check.not_checked(
                    f"{host.name}: the network of {network.removeprefix('container:')}"
                )
            elif network in built_in or await _has_network(host, network):
                check.ok(f"{host.name}: {network}")
            else:
                check.problem(
                    f"{host.name} has no network {network}",
                    f"Run `docker network create {network}` there, or correct"
                    " BOTPOOL_DOCKER_NETWORK or docker.network in BOTPOOL_CONTAINER_FILE.",
                )


async def _has_network(host: DockerHost, network: str) -> bool:
    with docker_api.mapped_errors(host.name):
        try:
            await (await host.client.networks.get(network)).show()
        except DockerError as error:
            if error.status == docker_api.NOT_FOUND:
                return False
            raise
    return True


async def _examine_images(report: Report, host: DockerHost, settings: Settings) -> None:
    images = {settings.image(platform) for platform in Platform} - {None}
    for image in sorted(str(image) for image in images):
        unanswered = f"Check that {host.name} can reach the registry of {image}."
        async with report.check("image on host", unanswered, seconds=_SECONDS) as check:
            with docker_api.mapped_errors(host.name):
                there = await docker_api.has_image(host.client, image)
            lacks = f"{host.name} doesn't have {image}"
            if there:
                check.ok(f"{host.name} has {image}")
            elif image in settings.never_pulled:
                check.problem(
                    f"{lacks}, and docker.pull is `never`",
                    "Load it there, or remove docker.pull from BOTPOOL_CONTAINER_FILE.",
                )
            elif host.is_podman:
                check.warning(
                    f"{lacks} yet: the first bot waits until it is pulled. Podman can't ask the"
                    " registry whether it can be",
                    f"Run `podman pull {image}` there, which tells.",
                )
            else:
                await _ask_registry(check, host, image, f"{lacks} yet")


async def _ask_registry(check: Check, host: DockerHost, image: str, lacks: str) -> None:
    """Check whether the host could pull an image, with the credentials that botpool would use."""
    auth = await registry_header(image)
    with docker_api.mapped_errors(host.name):
        failure = await docker_api.ask_registry(host.client, image, auth)
    reference = read_image(image)
    registry = (reference and reference.registry) or "docker.io"
    if failure is None:
        check.warning(
            f"{lacks}: the first bot waits until it is pulled",
            f"Run `docker pull {image}` there, or let the first bot wait.",
        )
    elif failure.status == docker_api.NOT_FOUND:
        check.problem(
            f"{lacks}, and {registry} has no such image",
            "Push it, or correct its name or tag in BOTPOOL_IMAGE_….",
        )
    elif failure.status in docker_api.DENIED and auth is None:
        check.problem(
            f"{lacks}, and {registry} wants credentials for it, or has no such image",
            f"Run `docker login {registry}` as the user that runs botpool.",
        )
    elif failure.status in docker_api.DENIED:
        check.problem(
            f"{lacks}, and {registry} refuses the credentials that `docker login` stored",
            f"Run `docker login {registry}` again, as a user who may pull it.",
        )
    else:
        check.problem(
            f"{lacks}, and its registry {registry} can't be asked: {failure.message}",
            f"Start the registry, or see that {host.name} can reach it.",
        )


async def _examine_init(report: Report, host: DockerHost, settings: Settings) -> None:
    """Check the init program that leads containers. Without it, none of them starts."""
    async with report.check("init program") as check:
        if not any(options.init for options in settings.docker_options.values()):
            return
        if not host.is_podman:
            if (host.info.get("InitCommit") or {}).get("ID") == _NO_INIT:
                program = host.info.get("InitBinary") or "docker-init"
                check.problem(f"{host.name} can't run {program}: no bot starts", _INSTALL_INIT)
            else:
                check.ok(f"{host.name} has one")
        elif not host.is_here:
            check.not_checked(f"Podman on {host.name} doesn't say whether it has {_PODMAN_INIT}")
        elif (found := _podman_init()) is not None:
            check.ok(found)
        else:
            check.warning(
                f"{_PODMAN_INIT} is in none of its usual places on this machine: if Podman doesn't"
                " find it either, no bot starts",
                _INSTALL_INIT,
            )


def _podman_init() -> str | None:
    """Podman's init program on this machine: what its settings name, or where it looks for one."""
    for path in _PODMAN_SETTINGS:
        with suppress(OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
            tables = tomllib.loads(Path(path).read_text("utf-8"))
            for table in ("containers", "engine"):
                if named := tables.get(table, {}).get("init_path"):
                    return str(named) if Path(named).exists() else None
    folders = ":".join(_PODMAN_FOLDERS)
    return shutil.which(_PODMAN_INIT, path=folders) or shutil.which(_PODMAN_INIT)


async def _examine_disk(report: Report, host: DockerHost) -> None:
    """Check the disk of Docker's files, if Docker is on this machine.

    Docker says where its files are, but not how much room their disk has.
    """
    async with report.check("disk", seconds=_SECONDS) as check:
        if host.is_here:
            check_disk(check, host.root, "Free some space: `docker system df` shows what uses it.")


def _is_barred(error: BaseException | None) -> bool:
    """Whether the cause is a socket that this user may not use."""
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__ or error.__context__
    return False
