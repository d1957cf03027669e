"""What Docker is told to make of a container's specification and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botpool.engines.base import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.container_file import DockerOptions
    from botpool.engines.base import ContainerSpec

GATEWAY = "host.docker.internal"
"""The name by which a container on a bridge knows its host."""

_LOG_DRIVER = "json-file"
_LOG_OPTIONS = {"max-size": "10m", "max-file": "2"}
_WITHOUT_GATEWAY = ("host", "none", "container:")


def configuration(
    spec: ContainerSpec, options: DockerOptions, labels: Mapping[str, str], *, podman: bool
) -> dict[str, Any]:
    """The body of a request that creates a container.

    Our labels win over those of the options, and our variables over any other.
    """
    environment = {**spec.environment, REFERENCE: spec.name}
    config: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {**options.labels, **labels},
        "User": options.user,
        "Cmd": options.command,
        "Entrypoint": options.entrypoint,
        "HostConfig": _chosen(_host_config(options, podman=podman)),
    }
    return _chosen(config)


def _host_config(options: DockerOptions, *, podman: bool) -> dict[str, Any]:
    return {
        "NetworkMode": options.network,
        "RestartPolicy": {"Name": "no"},
        # It reaps what a bot leaves behind, and passes signals on to the bot.
        "Init": options.init,
        "LogConfig": _log_config(options),
        "NanoCpus": None if options.cpus is None else round(options.cpus * 1e9),
        "Memory": options.memory,
        "ShmSize": options.shm_size,
        "PidsLimit": options.pids_limit,
        "Ulimits": [
            {"Name": name, "Soft": limit.soft, "Hard": limit.hard}
            for name, limit in options.ulimits.items()
        ],
        "Binds": options.volumes,
        "Tmpfs": options.tmpfs,
        "ReadonlyRootfs": options.read_only,
        "Devices": [_device(device) for device in options.devices],
        "DeviceRequests": _device_requests(options.gpus),
        "Runtime": options.runtime,
        "ExtraHosts": _extra_hosts(options),
        "Dns": [str(server) for server in options.dns],
        "DnsSearch": options.dns_search,
        "CapAdd": options.cap_add,
        "CapDrop": options.cap_drop,
        # Docker wants the profile itself, Podman a path on its own machine.
        "SecurityOpt": [
            option.text if podman or option.profile is None else f"seccomp={option.profile}"
            for option in options.security_opt
        ],
    }


def _chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that were chosen. What was not is for the image and for Docker to say."""
    return {name: value for name, value in config.items() if value not in (None, (), [], {})}


def _log_config(options: DockerOptions) -> dict[str, Any]:
    if options.log_driver is None:
        return {"Type": _LOG_DRIVER, "Config": {**_LOG_OPTIONS, **options.log_options}}
    return {"Type": options.log_driver, "Config": options.log_options}


def _device(device: str) -> dict[str, str]:
    on_host, *rest = device.split(":")
    inside, permissions = [*rest, *(on_host, "rwm")[len(rest) :]]
    return {
        "PathOnHost": on_host,
        "PathInContainer": inside,
        "CgroupPermissions": permissions,
    }


def _device_requests(gpus: int | tuple[str, ...] | None) -> list[dict[str, Any]]:
    if gpus is None:
        return []
    which = {"Count": gpus} if isinstance(gpus, int) else {"DeviceIDs": gpus}
    return [{**which, "Capabilities": [["gpu"]]}]


def _extra_hosts(options: DockerOptions) -> list[str]:
    hosts = dict(options.extra_hosts)
    if not options.network.startswith(_WITHOUT_GATEWAY):
        hosts.setdefault(GATEWAY, "host-gateway")
    return [f"{name}:{address}" for name, address in hosts.items()]
