"""The engine `coolify`: from its URL to the settings of its servers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, TypeAdapter

from botpool.doctor.coolify_access import (
    NEW_TOKEN,
    Access,
    Reader,
    examine_access,
)
from botpool.doctor.coolify_images import examine_tags
from botpool.doctor.coolify_servers import examine_servers
from botpool.doctor.hosts import examine_lost_slots, examine_room
from botpool.engines.coolify.settings import coolify_api, coolify_engine, coolify_servers
from botpool.engines.coolify.wire import Environment, version_number
from botpool.models.slots import slot_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from botpool.doctor.database import Known
    from botpool.doctor.findings import Report
    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.engine import SlotLike
    from botpool.engines.coolify.wire import Application
    from botpool.settings import Settings

_MAJOR = 4
_REQUESTS = 6
_REQUESTS_IF_STOPS_MUST_BE_PROVED = 8
_SHOWS_STOPS_SINCE = version_number("4.3.3")
_RAISE = "set API_RATE_LIMIT in Coolify's .env, which counts for each user"
_LACKS = (
    ("4.0.0-beta.429", "a slot's variables are also visible to its build", False),
    ("4.0.0-beta.436", "a deployment under way can't be cancelled", False),
    ("4.0.0-beta.453", "every stop deletes the image, so each bot waits for a pull", True),
    ("4.0.0-beta.454", "each slot gets a public domain", False),
    ("4.0.0-beta.467", "a stop can't be told to keep images", False),
    ("4.2.0", "the nightly clean-up may take an image if there are more than two", False),
    ("4.3.3", "a stop is shown late or never, so it takes longer and more requests", False),
)
"""A version, what was missing or wrong before it, and whether that is a problem."""

_SHOWN = 5


class _Project(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    uuid: str
    name: str = ""
    environments: list[Environment] | None = None


_PROJECTS = TypeAdapter(list[_Project])
_PROJECT = TypeAdapter(_Project)


async def examine_coolify(
    report: Report,
    settings: Settings,
    known: Known | None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> None:
    """Check Coolify as far as the token allows. Creates and changes nothing there."""
    servers: dict[str, str | None] = {}
    async with report.check("server", "Correct BOTPOOL_COOLIFY_SERVER_UUID."):
        servers = coolify_servers(settings)
    api: CoolifyApi | None = None
    token = settings.coolify_api_token
    async with report.check("access", NEW_TOKEN):
        api = coolify_api(settings, transport)
    url = settings.coolify_api_url
    if api is None or url is None or token is None:
        return
    reader = Reader(url, token.get_secret_value().strip(), transport)
    try:
        access = await examine_access(report, reader, api)
        if access is not None:
            await _examine_limit(report, settings, access)
            await examine_tags(report, settings)
        if access is not None and access.version is not None:
            await _examine_version(report, access.version)
            await _examine_project(report, settings, reader)
            listed = await _list(report, api)
            await examine_servers(report, settings, reader, api, servers, listed, access.version)
            if servers and settings.coolify_project_uuid is not None:
                await _examine_names(report, settings, known, transport)
    finally:
        await reader.close()
        await api.close()
    if servers:
        await examine_room(report, settings, len(servers))
        await examine_lost_slots(report, "coolify", servers, known, "BOTPOOL_COOLIFY_SERVER_UUID")


async def _examine_limit(report: Report, settings: Settings, access: Access) -> None:
    async with report.check("rate limit") as check:
        if access.limit is None:
            return
        ours = settings.coolify_requests_per_minute or access.limit
        sent = min(ours, access.limit)
        bots = sent // _requests_a_bot(access.version)
        found = (
            f"Coolify allows {access.limit} requests a minute, and botpool sends up to {sent}:"
            f" about {bots} bots a minute can come and go"
        )
        if access.limit < ours:
            check.warning(
                f"{found}, fewer than with BOTPOOL_COOLIFY_REQUESTS_PER_MINUTE={ours}",
                f"Unset it, or {_RAISE}.",
            )
        else:
            check.ok(f"{found}. For more, {_RAISE}")


def _requests_a_bot(version: str | None) -> int:
    """How many requests a bot costs from its start until its slot is clean."""
    shown = version is None or version_number(version) >= _SHOWS_STOPS_SINCE
    return _REQUESTS if shown else _REQUESTS_IF_STOPS_MUST_BE_PROVED


async def _examine_version(report: Report, version: str) -> None:
    async with report.check("version") as check:
        number = version_number(version)
        lacks = [lack for lack in _LACKS if number < version_number(lack[0])]
        if lacks:
            say = check.problem if any(bad for _, _, bad in lacks) else check.warning
            say(
                f"{version} is old: {'; '.join(what for _, what, _ in lacks)}",
                f"Update Coolify to {lacks[-1][0]} or later.",
            )
        elif number.major != _MAJOR:
            check.warning(
                f"botpool supports Coolify {_MAJOR}, but this is {version}",
                "Check whether there is a newer botpool.",
            )
        else:
            check.ok(version)


async def _examine_project(report: Report, settings: Settings, reader: Reader) -> None:
    wanted = settings.coolify_project_uuid
    setting = "BOTPOOL_COOLIFY_PROJECT_UUID"
    project: _Project | None = None
    async with report.check("project", f"Correct {setting}.") as check:
        projects = await reader.read("/projects", _PROJECTS) or []
        there = _some([f"{each.uuid} ({each.name})" for each in projects])
        if wanted is None:
            check.problem(f"{setting} is not set. Projects: {there}", f"Set {setting}.")
        elif wanted not in {each.uuid for each in projects}:
            check.problem(f"There is no project {wanted}. Projects: {there}", f"Correct {setting}.")
        else:
            project = await reader.read(f"/projects/{wanted}", _PROJECT)
            check.ok(f"{wanted} ({project.name if project else ''})")
    if project is None or project.environments is None:
        return
    async with report.check("environment") as check:
        name = settings.coolify_environment_name
        names = [environment.name for environment in project.environments]
        if name in names:
            check.ok(name)
        else:
            check.problem(
                f"The project has no environment {name}. Environments: {_some(names)}",
                "Correct BOTPOOL_COOLIFY_ENVIRONMENT_NAME.",
            )


async def _list(report: Report, api: CoolifyApi) -> Sequence[Application] | None:
    async with report.check("applications"):
        return await api.applications()
    return None


async def _examine_names(
    report: Report,
    settings: Settings,
    known: Known | None,
    transport: httpx.AsyncBaseTransport | None,
) -> None:
    """Look for applications that are named like slots but don't belong to this botpool."""
    async with report.check("applications") as check:
        engine = coolify_engine(settings, "doctor", transport)
        try:
            found = await engine.slot_like()
        finally:
            await engine.close()
        named: dict[str, list[str]] = defaultdict(list)
        for like in found:
            named[_slot_name(like)].append(like.container.ref)
        twice = [f"{name} ({', '.join(uuids)})" for name, uuids in named.items() if len(uuids) > 1]
        if twice:
            check.warning(
                f"Several applications share the name of one slot: {_some(twice)}",
                "Run `botpool slots import --remove-duplicates` to delete the unused ones.",
            )
        if known is None:
            check.not_checked(f"{len(found)} are named like slots; the database was not read")
            return
        ours = {slot.container_ref for slot in known.slots}
        # The container of a slot without a reference may be just being created.
        making = {slot.slot_name for slot in known.slots if slot.container_ref is None}
        strange = [
            f"{like.application.name} ({like.container.ref})"
            for like in found
            if like.container.ref not in ours and _slot_name(like) not in making
        ]
        if strange:
            check.warning(
                f"{len(strange)} are named like slots but are not this botpool's: {_some(strange)}",
                "Run `botpool slots import` to take them over. Leave them alone if they belong to"
                " another botpool.",
            )
        elif not twice:
            check.ok(f"{len(found)} named like slots, none of them foreign")


def _slot_name(like: SlotLike) -> str:
    return slot_name(*like.named)


def _some(what: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else ""
    return (", ".join(what[:_SHOWN]) or "none") + more
