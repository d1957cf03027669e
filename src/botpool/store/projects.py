"""Projects in the database."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from botpool.errors import ProjectNotFound
from botpool.models.projects import Project, ProjectLimits, ProjectNumbers
from botpool.store.postgres.database import LONG_SECONDS
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncpg

    from botpool.store.postgres.database import Database


class Projects:
    """The queries of projects.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "projects")

    async def all(self) -> list[Project]:
        """Every project, the oldest first."""
        return [_project(row) for row in await self._queries.rows("all", None)]

    async def get(self, project_id: int) -> Project:
        """One project. Raises `ProjectNotFound`."""
        row = await self._queries.row("all", project_id)
        if row is None:
            raise ProjectNotFound(f"There is no project {project_id}.")
        return _project(row)

    async def id_of(self, name: str) -> int:
        """The id of the project with this name. Raises `ProjectNotFound`."""
        row = await self._queries.row("id_of", name)
        if row is None:
            raise ProjectNotFound(f"There is no project with the name {name}.")
        project_id: int = row["id"]
        return project_id

    async def add(self, name: str, limits: ProjectLimits, secret: str) -> int:
        """Add a project with its webhook secret, and return its id.

        Raises `ConstraintViolated` if its name is taken.
        """
        (row,) = await self._queries.rows("add", name, limits, secret)
        project_id: int = row["id"]
        return project_id

    async def change(self, project_id: int, changes: Mapping[str, str | int | None]) -> bool:
        """Change a name or limits. False if there is no such project.

        Raises `ConstraintViolated` if the name is taken.
        """
        return await self._queries.found("change", project_id, changes)

    async def delete(self, project_id: int) -> bool:
        """Delete a project with all that is its own. False if it has a live bot."""
        return await self._queries.run("delete", project_id, seconds=LONG_SECONDS) > 0


def _project(row: asyncpg.Record) -> Project:
    return Project(
        id=row["id"],
        name=row["name"],
        limits=ProjectLimits(**{each.name: row[each.name] for each in fields(ProjectLimits)}),
        numbers=ProjectNumbers(**{each.name: row[each.name] for each in fields(ProjectNumbers)}),
        created_at=row["created_at"],
    )
