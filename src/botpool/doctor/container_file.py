"""The container file: whether others can read its secrets, and what an engine leaves out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.engines.base import EngineName
from botpool.engines.coolify.settings import container_mistakes
from botpool.states import Platform

if TYPE_CHECKING:
    from botpool.doctor.findings import Report
    from botpool.settings import Settings

_OTHERS = 0o077


async def examine_container_file(report: Report, settings: Settings) -> None:
    """Check who can read the file. That it makes sense was checked when it was read."""
    async with report.check("container file", "Correct BOTPOOL_CONTAINER_FILE.") as check:
        path = settings.container_file
        if path is None:
            return
        secret = any(settings.container_options(platform).env for platform in Platform)
        if secret and path.stat().st_mode & _OTHERS:
            check.warning(
                f"Other users of this machine may read the variables in {path}",
                f"Run `chmod 600 {path}`.",
            )
        else:
            check.ok(str(path))


async def examine_left_out(report: Report, settings: Settings, engine: str) -> None:
    """Tell what the file asks for and an engine other than `docker` can't do."""
    async with report.check("container file") as check:
        if engine == EngineName.COOLIFY:
            for mistake in container_mistakes(settings):
                check.problem(mistake, "Remove that from BOTPOOL_CONTAINER_FILE.")
            return
        keys = {key for platform in Platform for key in settings.docker_keys(platform)}
        if keys:
            names = ", ".join(f"docker.{key}" for key in sorted(keys))
            check.warning(
                f"{names}: only Docker's containers get this",
                "Remove it, or set BOTPOOL_ENGINE=docker.",
            )
