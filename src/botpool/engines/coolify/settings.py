"""A Coolify engine made from the settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx

from botpool.engines.coolify.api import CoolifyApi
from botpool.engines.coolify.budget import Budget
from botpool.engines.coolify.engine import CoolifyEngine
from botpool.errors import SettingsInvalid
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Callable

    from botpool.settings import Settings

_TAKEN = frozenset({"cpus", "memory", "shm_size"})
"""What an application takes of the table `docker` of the container file."""

_BREAKS = re.compile(r"['\x00-\x1f\x7f]")
"""In the literal value of a variable, this breaks the deployment."""


def coolify_api(
    settings: Settings,
    transport: httpx.AsyncBaseTransport | None = None,
    workers: Callable[[], int] = lambda: 1,
) -> CoolifyApi:
    """The API that the settings name, which `workers` replicas use. Raises `SettingsInvalid`."""
    url, token = settings.coolify_api_url, settings.coolify_api_token
    if url is None or token is None:
        raise SettingsInvalid("BOTPOOL_COOLIFY_API_URL and BOTPOOL_COOLIFY_API_TOKEN must be set.")
    if not _is_address(url):
        raise SettingsInvalid("BOTPOOL_COOLIFY_API_URL must look like `https://coolify.example`.")
    secret = token.get_secret_value().strip()
    if re.fullmatch(r"[!-~]+", secret) is None:  # otherwise a later error would show it
        raise SettingsInvalid("BOTPOOL_COOLIFY_API_TOKEN must look like `1|…`.")
    return CoolifyApi(
        url,
        secret,
        Budget(settings.coolify_requests_per_minute, replicas=workers),
        transport=transport,
    )


def coolify_servers(settings: Settings) -> dict[str, str | None]:
    """Each server with its destination. Raises `SettingsInvalid`."""
    servers = _several(settings.coolify_server_uuid)
    if not servers:
        raise SettingsInvalid("BOTPOOL_COOLIFY_SERVER_UUID must be set.")
    if len({*servers}) < len(servers):
        raise SettingsInvalid("BOTPOOL_COOLIFY_SERVER_UUID names a server twice.")
    destinations: list[str | None] = [*_several(settings.coolify_destination_uuid)]
    if destinations and len(destinations) != len(servers):
        raise SettingsInvalid(
            "BOTPOOL_COOLIFY_DESTINATION_UUID must name one destination for each server, in order."
        )
    return dict(zip(servers, destinations or [None] * len(servers), strict=True))


def container_mistakes(settings: Settings) -> list[str]:
    """What the container file asks for and Coolify can't do, a clause each."""
    keys = {f"docker.{key}" for each in Platform for key in settings.docker_keys(each) - _TAKEN}
    names = {
        name
        for each in Platform
        for name, value in settings.container_options(each).environment.items()
        if _BREAKS.search(value)
    }
    mistakes = []
    if keys:
        mistakes.append(f"Coolify can't give containers {', '.join(sorted(keys))}")
    if names:
        mistakes.append(
            f"Coolify can't deploy values with a single quote or a line break, which"
            f" {', '.join(sorted(names))} {'has' if len(names) == 1 else 'have'}"
        )
    return mistakes


def coolify_engine(
    settings: Settings,
    installation: str,
    transport: httpx.AsyncBaseTransport | None = None,
    workers: Callable[[], int] = lambda: 1,
) -> CoolifyEngine:
    """The engine that the settings describe. Raises `SettingsInvalid`."""
    if settings.coolify_project_uuid is None:
        raise SettingsInvalid("BOTPOOL_COOLIFY_PROJECT_UUID must be set.")
    servers = coolify_servers(settings)
    return CoolifyEngine(
        coolify_api(settings, transport, workers),
        servers,
        project=settings.coolify_project_uuid,
        environment=settings.coolify_environment_name,
        installation=installation,
        options=settings.docker_options,
        images=[image for image in map(settings.image, Platform) if image],
        stop_grace_seconds=settings.stop_grace_ms / 1000,
        bot_data=settings.coolify_bot_data,
    )


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in {"http", "https"} and bool(url.host)


def _several(setting: str | None) -> list[str]:
    return [part.strip() for part in (setting or "").split(",") if part.strip()]
