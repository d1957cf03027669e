"""Options and arguments that several commands have, and what is known by its name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from botpool.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from botpool.cli.api import Api


class PlatformName(StrEnum):
    """A platform by any of its names."""

    GOOGLE_MEET = "google-meet"
    MICROSOFT_TEAMS = "microsoft-teams"
    ZOOM = "zoom"
    TEAMS = "teams"


Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="How many at the most.")]
Cursor = Annotated[
    str | None, typer.Option(help="Begin after a page: its `nextCursor`, as --json shows it.")
]
OverlapHours = Annotated[
    float, typer.Option(min=0, max=720, help="How long the old one works beside the new one.")
]

HOUR_MS = 3_600_000


async def project_id_of(api: Api, name: str) -> int:
    """The id of the project with a name. Raises `CommandFailed`."""
    for project in (await api.get("/projects"))["projects"]:
        if project["name"] == name:
            return int(project["id"])
    raise CommandFailed(f"There is no project with the name {name}.", Exit.NOT_FOUND)
