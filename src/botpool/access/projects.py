"""Projects: who owns bots, keys and webhook endpoints.

There is always the default project, so nobody needs another one to begin with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.errors import (
    ConstraintViolated,
    InvalidRequest,
    ProjectInUse,
    ProjectNameTaken,
    ProjectNotFound,
)
from botpool.models.projects import DEFAULT_PROJECT, ProjectLimits
from botpool.models.webhooks import new_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.models.projects import Project
    from botpool.store import Store

LONGEST_NAME = 100


class Projects:
    """Makes, changes and deletes projects. Any number of replicas may."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, name: str, limits: ProjectLimits | None = None) -> tuple[Project, str]:
        """A new project, and the secret that signs what its bots' callback URLs get.

        The secret can't be shown again. Raises `InvalidRequest` for an unfit name, and
        `ProjectNameTaken`.
        """
        _check_name(name)
        secret = new_secret()
        try:
            project_id = await self._store.projects.add(name, limits or ProjectLimits(), secret)
        except ConstraintViolated as error:
            raise _refused(name, error) from error
        return await self._store.projects.get(project_id), secret

    async def change(self, project_id: int, changes: Mapping[str, str | int | None]) -> Project:
        """Change a project's `name`, or limits by their names; `None` is no limit.

        A lower limit ends no bot that lives. Raises what `create` raises, and `ProjectNotFound`.
        """
        name = changes.get("name")
        if name is not None:
            _check_name(str(name))
        try:
            found = await self._store.projects.change(project_id, changes)
        except ConstraintViolated as error:
            raise _refused(str(name), error) from error
        if not found:
            raise ProjectNotFound(f"There is no project {project_id}.")
        return await self._store.projects.get(project_id)

    async def delete(self, project_id: int) -> None:
        """Delete a project with all that is its own: its ended bots, keys and webhooks.

        Raises `ProjectNotFound`, and `ProjectInUse` if it has a bot that hasn't ended, or is the
        default project.
        """
        project = await self._store.projects.get(project_id)
        if project_id == DEFAULT_PROJECT:
            raise ProjectInUse("The default project can't be deleted.")
        if not await self._store.projects.delete(project_id):
            raise ProjectInUse(
                f"The project {project.name} has bots that haven't ended: stop them first."
            )


def _check_name(name: str) -> None:
    if not (name.strip() and name.isprintable() and len(name) <= LONGEST_NAME):
        raise InvalidRequest(
            f"The name of a project must have 1 to {LONGEST_NAME} printable characters."
        )


def _refused(name: str, error: ConstraintViolated) -> Exception:
    if error.constraint == "project_name":
        return ProjectNameTaken(f"Another project has the name {name}.")
    return error
