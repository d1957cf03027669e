"""Whether a Docker host has what the container file asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from botpool.models.diagnoses import Result
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botpool.container_file import DockerOptions
    from botpool.doctor.docker_hosts import DockerHost
    from botpool.doctor.findings import Report
    from botpool.settings import Settings

_GPU_RUNTIME = "nvidia"
_NO_LOGS = "none"


class _Lack(NamedTuple):
    result: Result
    found: str
    mend: str


async def examine_options(report: Report, host: DockerHost, settings: Settings) -> None:
    """Check the options of every platform against what a host says of itself."""
    async with report.check("container file") as check:
        if not any(settings.docker_keys(platform) for platform in Platform):
            return
        options = settings.docker_options.values()
        # Once each: most options are those of several platforms.
        lacks = dict.fromkeys(lack for each in options for lack in _lacks(host, each))
        for lack in lacks:
            if lack.result is Result.PROBLEM:
                check.problem(lack.found, lack.mend)
            else:
                check.warning(lack.found, lack.mend)
        if not lacks:
            check.ok(f"{host.name} has what it asks for")


def _lacks(host: DockerHost, options: DockerOptions) -> Iterator[_Lack]:
    if host.is_here:
        yield from _missing_files(host, options)
    runtimes = host.info.get("Runtimes") or {}
    if options.runtime is not None and options.runtime not in runtimes:
        yield _Lack(
            Result.PROBLEM,
            f"{host.name} has no runtime {options.runtime}",
            f"Correct docker.runtime: {host.name} has {', '.join(sorted(runtimes)) or 'none'}.",
        )
    if options.gpus is not None and (host.is_podman or _GPU_RUNTIME not in runtimes):
        yield _Lack(
            Result.WARNING,
            f"{host.name} has no runtime {_GPU_RUNTIME}: bots with docker.gpus may not start, or"
            " not get them",
            "Install NVIDIA's container toolkit there, or remove docker.gpus.",
        )
    drivers = (host.info.get("Plugins") or {}).get("Log") or []
    driver = options.log_driver
    if driver == _NO_LOGS:
        yield _Lack(
            Result.WARNING,
            "With docker.log_driver = none, botpool can't keep the last lines of a bot",
            "Choose a driver such as `local`.",
        )
    elif driver is not None and driver not in drivers and not host.is_podman:
        yield _Lack(
            Result.PROBLEM,
            f"{host.name} has no log driver {driver}",
            f"Correct docker.log_driver: {host.name} has {', '.join(sorted(drivers)) or 'none'}.",
        )
    if host.is_podman and not host.is_here and any(each.profile for each in options.security_opt):
        yield _Lack(
            Result.WARNING,
            f"Podman on {host.name} reads seccomp profiles from its own disk",
            "Put the profile there, at the same path.",
        )


def _missing_files(host: DockerHost, options: DockerOptions) -> Iterator[_Lack]:
    sources = [volume.partition(":")[0] for volume in options.volumes]
    for folder in sources:
        if folder.startswith("/") and _is_missing(folder):
            yield _Lack(
                Result.PROBLEM if host.is_podman else Result.WARNING,
                f"{host.name} has no {folder} for a volume: "
                + ("bots can't start" if host.is_podman else "Docker creates an empty folder"),
                f"Create {folder}, or correct docker.volumes.",
            )
    for device in (device.partition(":")[0] for device in options.devices):
        if _is_missing(device):
            yield _Lack(
                Result.PROBLEM,
                f"{host.name} has no device {device}: bots can't start",
                "Correct docker.devices.",
            )


def _is_missing(path: str) -> bool:
    """Whether there is no such file, as far as this user can see."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
