"""The URL at which containers reach botpool: whether they can, and whether botpool answers."""

from __future__ import annotations

import os
import socket
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import httpx

from botpool.engines.base import EngineName
from botpool.engines.docker.configuration import GATEWAY
from botpool.engines.docker.engine import docker_hosts
from botpool.errors import SettingsInvalid

if TYPE_CHECKING:
    from botpool.doctor.findings import Check, Report
    from botpool.settings import Settings

_ANSWER_SECONDS = 5.0
_HEALTHY = {"status": "ok"}
_WHOSE_CONTAINERS_CALL: dict[str, str] = {
    EngineName.COOLIFY: "Coolify's servers",
    EngineName.KUBERNETES: "pods",
}
"""Who never shares this machine's loopback address."""


async def examine_address(report: Report, settings: Settings) -> None:
    """Check the URL itself, and whether botpool answers there."""
    async with report.check("address") as check:
        url = _read(settings)
        if url is None:
            check.problem(
                f"{_source(settings)} can't be made into an http(s) URL",
                "Set BOTPOOL_PUBLIC_URL to a URL such as https://botpool.example.",
            )
            return
        await _ask(check, url)


async def examine_way(report: Report, settings: Settings, engine: str) -> None:
    """Check whether containers of an engine can reach the URL."""
    async with report.check("address") as check:
        url = _read(settings)
        if url is None:
            return  # already reported
        local = is_local(url.hostname or "")
        if engine in _WHOSE_CONTAINERS_CALL:
            if local:
                check.problem(
                    _unreachable(url, settings),
                    f"Set BOTPOOL_PUBLIC_URL to a URL that {_WHOSE_CONTAINERS_CALL[engine]} can"
                    " reach, such as https://botpool.example.",
                )
            else:
                check.ok(f"Containers call {shown(url)}")
        elif engine == EngineName.DOCKER:
            _check_docker(check, url, settings)


def _check_docker(check: Check, url: SplitResult, settings: Settings) -> None:
    here = _docker_is_here(settings)
    networks = {options.network for options in settings.docker_options.values()}
    shared = networks == {"host"} and here
    if is_local(url.hostname or "") and not shared:
        port = url.port or settings.port
        name = GATEWAY if here else "this-machine.example"
        check.problem(
            _unreachable(url, settings),
            f"Set BOTPOOL_PUBLIC_URL=http://{name}:{port} and BOTPOOL_HOST=0.0.0.0"
            + (", or BOTPOOL_DOCKER_NETWORK=host." if here else "."),
        )
    elif url.hostname == GATEWAY and is_loopback(settings.host):
        check.warning(
            f"Containers call {shown(url)}, but botpool only listens on {settings.host}",
            "Set BOTPOOL_HOST to 0.0.0.0, or to the address of Docker's bridge.",
        )
    else:
        check.ok(f"Containers call {shown(url)}")


def _docker_is_here(settings: Settings) -> bool:
    """Whether every Docker host is this machine, as far as addresses tell."""
    try:
        addresses = docker_hosts(settings.docker_hosts).values()
    except SettingsInvalid:
        return True
    urls = [urlsplit(address or os.environ.get("DOCKER_HOST", "")) for address in addresses]
    return all(url.hostname is None or is_local(url.hostname) for url in urls)


async def _ask(check: Check, url: SplitResult) -> None:
    if url.port == 0:
        check.not_checked("botpool picks a free port when it starts")
        return
    if url.hostname == GATEWAY:
        check.not_checked(f"Only containers can resolve {GATEWAY}")
        return
    start = "Start botpool with `botpool serve`, or correct BOTPOOL_PUBLIC_URL."
    try:
        # Without this environment's proxies: containers don't have them.
        async with httpx.AsyncClient(
            timeout=_ANSWER_SECONDS, trust_env=False, verify=ssl.create_default_context()
        ) as client:
            answer = await client.get(f"{shown(url)}/healthz")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        check.warning(f"{shown(url)} doesn't answer: {reason(error)}", start)
        return
    try:
        healthy = answer.is_success and answer.json() == _HEALTHY
    except ValueError:
        healthy = False
    if healthy:
        check.ok(f"botpool answers at {shown(url)}")
    else:
        check.warning(
            f"Something other than botpool answers at {shown(url)}: {answer.status_code}"
            f" {answer.headers.get('content-type', '')}",
            start,
        )


def reason(error: BaseException) -> str:
    """Why a server can't be reached, in a few words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "its name can't be resolved"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, ssl.SSLError):
            words = getattr(cause, "verify_message", "") or cause.reason or str(cause)
            return f"TLS error, {words}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def shown(url: SplitResult) -> str:
    """A URL without user, password, query or fragment."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    port = "" if url.port is None else f":{url.port}"
    return f"{url.scheme}://{host}{port}{url.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    """Whether this is a loopback name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether this is a loopback address or an unspecified one, such as 0.0.0.0."""
    try:
        return is_loopback(host) or ip_address(host).is_unspecified
    except ValueError:
        return False


def _read(settings: Settings) -> SplitResult | None:
    try:
        url = urlsplit(settings.runtime_url)
        _ = url.port  # raises if it is not a port
    except ValueError:
        return None
    return url if url.scheme in {"http", "https"} and url.hostname else None


def _source(settings: Settings) -> str:
    return "BOTPOOL_HOST and BOTPOOL_PORT" if settings.public_url is None else "BOTPOOL_PUBLIC_URL"


def _unreachable(url: SplitResult, settings: Settings) -> str:
    unset = " (BOTPOOL_PUBLIC_URL is not set)" if settings.public_url is None else ""
    return f"Containers can't reach {shown(url)}{unset}"
