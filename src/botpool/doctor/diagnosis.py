"""Every check, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from botpool.doctor.address import examine_address, examine_way
from botpool.doctor.container_file import examine_container_file, examine_left_out
from botpool.doctor.coolify import examine_coolify
from botpool.doctor.database import examine_database
from botpool.doctor.docker import examine_docker
from botpool.doctor.findings import Report
from botpool.doctor.images import examine_images
from botpool.doctor.kubernetes import examine_kubernetes
from botpool.doctor.process import examine_process
from botpool.engines.base import EngineName
from botpool.models.diagnoses import Finding, Result
from botpool.settings import unknown_variables
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

    from botpool.doctor.database import Known
    from botpool.errors import SettingsInvalid
    from botpool.settings import Settings
    from botpool.store import Database

_SECONDS = 60.0
"""How long all checks of an engine may take together."""
_SECONDS_WITH_PROBE = 240.0

_SECRET_LENGTH = 8
"""A shorter variable is no secret, and may be a part of any sentence."""

_REMOVE = "Remove it. docs/reference/settings.md lists every setting."


async def diagnose(
    settings: Settings,
    engine: str | None = None,
    *,
    probe: bool = False,
    database: Database | None = None,
    coolify_transport: httpx.AsyncBaseTransport | None = None,
) -> list[Finding]:
    """Check the database, the settings, and the engines in use, or only `engine`.

    The engines in use are that of the settings and those of existing slots. Changes nothing, ends
    in bounded time whatever hangs, raises nothing, and shows no secret. With `probe` it starts a
    pod on each cluster of Kubernetes to see whether that reaches botpool, and deletes it. Without
    `database` it opens the one of the settings.
    """
    report = Report()
    await _examine_variables(report)
    await examine_container_file(report, settings)
    known = await examine_database(report, settings, database)
    await examine_address(report, settings)
    used = await _examine_engines(report, settings, known) if engine is None else [engine]
    examined = await asyncio.gather(
        *(_examine(name, settings, known, coolify_transport, probe=probe) for name in used)
    )
    findings = [*report.findings, *(finding for each in examined for finding in each)]
    return [_without_secrets(finding, settings) for finding in findings]


def unreadable_settings(error: SettingsInvalid) -> Finding:
    """The only finding if the settings can't be read."""
    of_file = str(error).startswith("BOTPOOL_CONTAINER_FILE")
    page, what = ("container-file", "key") if of_file else ("settings", "setting")
    return Finding(
        check="settings",
        engine=None,
        result=Result.PROBLEM,
        found=str(error),
        mend=f"Correct it. docs/reference/{page}.md lists every {what}.",
    )


async def _examine_variables(report: Report) -> None:
    async with report.check("settings") as check:
        for name, meant in unknown_variables().items():
            advice = f"If you mean {meant}, rename it." if meant else _REMOVE
            check.warning(f"{name} is not a botpool setting", advice)


async def _examine_engines(report: Report, settings: Settings, known: Known | None) -> list[str]:
    """The engines in use, without those that this botpool doesn't know."""
    of_slots = {slot.engine for slot in known.slots} if known is not None else set()
    used = [settings.engine, *sorted(of_slots - {settings.engine})]
    async with report.check("engine") as check:
        names = ", ".join(EngineName)
        if settings.engine not in [*EngineName]:
            check.problem(
                f"There is no engine {settings.engine}", f"Set BOTPOOL_ENGINE to one of {names}."
            )
        else:
            check.ok(f"New slots run on {settings.engine}")
        for lost in sorted(of_slots - {*EngineName} - {settings.engine}):
            check.problem(
                f"Some slots are on the engine {lost}, which this botpool doesn't know",
                "Start the botpool that made these slots, or delete them.",
            )
    return [name for name in used if name in [*EngineName]]


async def _examine(
    engine: str,
    settings: Settings,
    known: Known | None,
    coolify_transport: httpx.AsyncBaseTransport | None,
    *,
    probe: bool,
) -> list[Finding]:
    report = Report(engine)
    seconds = _SECONDS_WITH_PROBE if probe else _SECONDS
    async with report.check("all checks", "Run this again.", seconds=seconds):
        if engine != EngineName.PROCESS:
            await examine_images(report, settings, engine, known)
            await examine_way(report, settings, engine)
        if engine == EngineName.PROCESS:
            await examine_process(report, settings)
            await examine_left_out(report, settings, engine)
        elif engine == EngineName.DOCKER:
            await examine_docker(report, settings, known)
        elif engine == EngineName.KUBERNETES:
            await examine_left_out(report, settings, engine)
            await examine_kubernetes(report, settings, known, probe=probe)
        else:
            await examine_left_out(report, settings, engine)
            await examine_coolify(report, settings, known, coolify_transport)
    return report.findings


def _without_secrets(finding: Finding, settings: Settings) -> Finding:
    """The finding without secrets. A last line of defence: no check should show one."""
    found = finding.found
    for secret in _secrets(settings):
        found = found.replace(secret, "…")
    return replace(finding, found=found)


def _secrets(settings: Settings) -> Iterable[str]:
    named = (
        settings.database_url,
        settings.coolify_api_token,
        settings.admin_key,
        settings.webhook_secret,
    )
    for secret in named:
        if secret is not None:
            yield secret.get_secret_value()
    token = settings.coolify_api_token
    if token is not None and (inner := token.get_secret_value().partition("|")[2]):
        yield inner
    for platform in Platform:
        for value in settings.container_options(platform).environment.values():
            if len(value) >= _SECRET_LENGTH:
                yield value
