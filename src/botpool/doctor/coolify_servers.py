"""The servers that Coolify deploys to: whether they can be used, and how they are set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from botpool.doctor.coolify_images import examine_cleanup
from botpool.engines.coolify.wire import Destination, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from botpool.doctor.coolify_access import Reader
    from botpool.doctor.findings import Check, Report
    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.wire import Application, Server
    from botpool.settings import Settings

_DESTINATIONS = TypeAdapter(list[Destination])
_WORKERS = 4
"""Of a Coolify that wasn't told otherwise."""
_SETTING = "BOTPOOL_COOLIFY_SERVER_UUID"
_DESTINATION = "BOTPOOL_COOLIFY_DESTINATION_UUID"


async def examine_servers(
    report: Report,
    settings: Settings,
    reader: Reader,
    api: CoolifyApi,
    servers: Mapping[str, str | None],
    listed: Sequence[Application] | None,
    version: str,
) -> None:
    """Check each server that the settings name, and its destination. `listed` may be missing."""
    there: dict[str, Server] = {}
    async with report.check("server") as check:
        there = {server.uuid: server for server in await api.servers()}
        if not servers:
            check.not_checked(f"Servers: {_names(there.values())}", f"Set {_SETTING}.")
        for uuid in servers:
            _check_server(check, uuid, there.get(uuid), _names(there.values()))
    for uuid, destination in servers.items():
        server = there.get(uuid)
        if server is not None and not server.swarm:
            await _examine_destination(report, reader, server, destination, listed)
            await _examine_settings(report, settings, server)
            await examine_cleanup(report, settings, reader, server, listed, version)
    await _examine_workers(report, settings, [there[uuid] for uuid in servers if uuid in there])


def _check_server(check: Check, uuid: str, server: Server | None, names: str) -> None:
    if server is None:
        check.problem(f"There is no server {uuid}. Servers: {names}", f"Correct {_SETTING}.")
        return
    inner = server.settings or ServerSettings()
    name = f"{server.name} ({uuid})"
    if server.swarm:
        check.problem(
            f"{name} is part of a Docker Swarm, where Coolify can't say whether a container runs,"
            " so botpool starts nothing there",
            f"Name a server that is in no Swarm in {_SETTING}.",
        )
    elif False in {server.is_reachable, inner.is_reachable}:
        check.problem(
            f"Coolify can't reach {name}",
            "Check the server and its SSH key in Coolify, and validate it there.",
        )
    elif False in {server.is_usable, inner.is_usable}:
        check.problem(
            f"Coolify can reach {name}, but can't use it",
            "Validate the server in Coolify. That installs Docker there.",
        )
    else:
        check.ok(f"Coolify can reach and use {name}")


async def _examine_destination(
    report: Report,
    reader: Reader,
    server: Server,
    wanted: str | None,
    listed: Sequence[Application] | None,
) -> None:
    """Check a server's destination.

    Newer versions of Coolify list destinations; older ones only show those that applications use.
    """
    async with report.check("destination", f"Correct {_DESTINATION}.") as check:
        told = await reader.read(f"/servers/{server.uuid}/destinations", _DESTINATIONS)
        whole = told is not None
        if told is None:
            told = [
                application.destination
                for application in listed or []
                if application.destination is not None and application.server is not None
            ]
            elsewhere = {each.uuid for each in told if _server(each) != server.uuid}
            told = [each for each in told if _server(each) == server.uuid]
        else:
            elsewhere = set()
        found = sorted({each.uuid for each in told if each.uuid})
        names = ", ".join(found) or "none"
        if wanted is None and len(found) > 1:
            check.problem(
                f"{server.name} has several destinations: {names}", f"Set {_DESTINATION}."
            )
        elif wanted is not None and (wanted in elsewhere or (whole and wanted not in found)):
            check.problem(
                f"{wanted} is not a destination of {server.name}. Destinations: {names}",
                f"Correct {_DESTINATION}.",
            )
        elif wanted in found or (wanted is None and whole):
            check.ok(f"{server.name}: {wanted or names}")
        else:
            check.not_checked(f"Coolify doesn't list the destinations of {server.name}")


async def _examine_workers(report: Report, settings: Settings, servers: Sequence[Server]) -> None:
    """Coolify doesn't say how many workers it has. They do the stops, too."""
    async with report.check("workers") as check:
        ours = settings.admitted_deployments
        builds = [each.settings.concurrent_builds for each in servers if each.settings]
        at_once = sum(min(each, ours) for each in builds if each is not None)
        if at_once >= _WORKERS:
            check.not_checked(
                f"{at_once} deployments at a time leave no worker for stops, if Coolify has"
                f" {_WORKERS}, as by default",
                f"Set HORIZON_MAX_PROCESSES={at_once + _WORKERS // 2} or more in Coolify's .env.",
            )
        elif at_once:
            check.ok(f"{at_once} deployments at a time, and Coolify has {_WORKERS} or more")


async def _examine_settings(report: Report, settings: Settings, server: Server) -> None:
    ours = settings.max_concurrent_deployments
    found = server.settings
    if found is None:
        return
    async with report.check("deployments at a time") as check:
        builds = found.concurrent_builds
        if builds is not None and builds < ours:
            check.warning(
                f"{server.name} runs {builds} at a time, but botpool starts {ours}: the rest queue",
                f"Set the server's concurrent builds to {ours} in Coolify, and"
                " HORIZON_MAX_PROCESSES in its .env to more than that, or set"
                f" BOTPOOL_MAX_CONCURRENT_DEPLOYMENTS={builds}.",
            )
        elif builds is not None:
            check.ok(f"{server.name} runs {builds} at a time, botpool starts {ours}")
    async with report.check("deployment queue") as check:
        limit = found.deployment_queue_limit
        if limit is not None and limit < ours:
            check.warning(
                f"{server.name} queues {limit}, but botpool starts {ours} at a time: some starts"
                " would be lost and tried again",
                f"Set the server's deployment queue limit to {ours} or more in Coolify.",
            )
        elif limit is not None:
            check.ok(f"{server.name} queues up to {limit}")


def _server(destination: Destination) -> str | None:
    return None if destination.server is None else destination.server.uuid


def _names(servers: Iterable[Server]) -> str:
    return ", ".join(f"{server.uuid} ({server.name})" for server in servers) or "none"
