"""Projects: what they may do, and what they do now."""

from datetime import datetime, timedelta
from typing import Annotated, Self

from fastapi import APIRouter, Path, Response
from pydantic import Field

from botpool.access.projects import LONGEST_NAME, Projects
from botpool.api.auth import KeyRoute, TheAdmin, TheCaller
from botpool.api.dependencies import TheSettings, TheStore
from botpool.api.errors import documented
from botpool.api.webhooks import NewSecretOut, RotateSecret
from botpool.api.wire import Asked, Wire
from botpool.errors import (
    Forbidden,
    InvalidRequest,
    ProjectInUse,
    ProjectNameTaken,
    ProjectNotFound,
    TooManyRequests,
    Unauthorized,
)
from botpool.feed.endpoints import Endpoints
from botpool.models.keys import ApiKey
from botpool.models.projects import DEFAULT_PROJECT, Project, ProjectLimits
from botpool.store import Store

router = APIRouter(
    prefix="/api/v1/projects",
    tags=["projects"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, InvalidRequest, TooManyRequests),
)

ProjectId = Annotated[int, Path(alias="projectId", ge=1, le=2**63 - 1)]
_Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
_Many = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


class SetLimits(Asked):
    """What a project may do. Null is no limit."""

    max_live_bots: _Many | None = Field(
        default=None, description="How many bots it may have at once, those that wait included."
    )
    max_creations_per_minute: _Many | None = Field(
        default=None, description="How many bots it may create within any 60 seconds."
    )
    max_duration_ms: Annotated[int, Field(strict=True, ge=1, le=2**53)] | None = Field(
        default=None,
        description="How long its bots may stay. The `maxDurationMs` of a bot may be shorter.",
    )


class CreateProject(Asked):
    """A project to be made."""

    name: _Name
    limits: SetLimits = Field(default_factory=SetLimits)


class ChangeProject(Asked):
    """What to change. What is left out stays as it is, also among the limits."""

    name: _Name | None = None
    limits: SetLimits | None = None


class LimitsOut(Wire):
    """What a project may do. Null is no limit."""

    max_live_bots: int | None
    max_creations_per_minute: int | None
    max_duration_ms: int | None


class ProjectNumbersOut(Wire):
    """How many bots a project has. Today began at midnight, UTC."""

    live: int = Field(description="Bots that haven't ended, those that wait included.")
    waiting: int = Field(description="Bots in the queue.")
    created_today: int
    failed_today: int = Field(description="How many of those that were created today failed.")


class ProjectOut(Wire):
    """Who owns bots, keys and webhook endpoints."""

    id: int
    name: str
    is_default: bool
    limits: LimitsOut
    numbers: ProjectNumbersOut
    created_at: datetime

    @classmethod
    def of(cls, project: Project) -> Self:
        """A project as it goes over the wire."""
        limits, numbers = project.limits, project.numbers
        return cls(
            id=project.id,
            name=project.name,
            is_default=project.id == DEFAULT_PROJECT,
            limits=LimitsOut(**{name: getattr(limits, name) for name in LimitsOut.model_fields}),
            numbers=ProjectNumbersOut(
                **{name: getattr(numbers, name) for name in ProjectNumbersOut.model_fields}
            ),
            created_at=project.created_at,
        )


class NewProjectOut(Wire):
    """A new project, and its webhook secret. It can't be shown again."""

    project: ProjectOut
    webhook_secret: str = Field(description="Signs what its bots' callback URLs get: `whsec_…`.")


class ProjectList(Wire):
    """The projects that you may see, the oldest first."""

    projects: list[ProjectOut]


@router.get("")
async def list_projects(caller: TheCaller, store: TheStore) -> ProjectList:
    """List every project with its numbers. A client's key sees its own."""
    if caller.project_id is not None:
        return ProjectList(projects=[ProjectOut.of(await store.projects.get(caller.project_id))])
    return ProjectList(projects=[ProjectOut.of(each) for each in await store.projects.all()])


@router.post("", status_code=201, responses=documented(ProjectNameTaken))
async def create_project(
    request: CreateProject, response: Response, _: TheAdmin, store: TheStore
) -> NewProjectOut:
    """Make a project. Then make keys for it. The answer has a secret that can't be shown again."""
    response.headers["Cache-Control"] = "no-store"
    limits = ProjectLimits(**request.limits.model_dump())
    project, secret = await Projects(store).create(request.name, limits)
    return NewProjectOut(project=ProjectOut.of(project), webhook_secret=secret)


@router.get("/{projectId}", responses=documented(ProjectNotFound))
async def get_project(project_id: ProjectId, caller: TheCaller, store: TheStore) -> ProjectOut:
    """Get one project, with its numbers."""
    return ProjectOut.of(await visible_project(store, caller, project_id))


@router.patch("/{projectId}", responses=documented(ProjectNotFound, ProjectNameTaken))
async def change_project(
    project_id: ProjectId, request: ChangeProject, _: TheAdmin, store: TheStore
) -> ProjectOut:
    """Change a project's name or limits. A lower limit ends no bot that lives."""
    changes = request.limits.model_dump(exclude_unset=True) if request.limits else {}
    if request.name is not None:
        changes["name"] = request.name
    return ProjectOut.of(await Projects(store).change(project_id, changes))


@router.delete("/{projectId}", status_code=204, responses=documented(ProjectNotFound, ProjectInUse))
async def delete_project(project_id: ProjectId, _: TheAdmin, store: TheStore) -> None:
    """Delete a project that has no live bot, with its ended bots, its keys and its webhooks.

    The default project can't be deleted.
    """
    await Projects(store).delete(project_id)


@router.post("/{projectId}/rotate-secret", status_code=201, responses=documented(ProjectNotFound))
async def rotate_project_secret(
    project_id: ProjectId,
    response: Response,
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
    request: RotateSecret | None = None,
) -> NewSecretOut:
    """Sign what a project's bots' callback URLs get with a new secret, which is shown once.

    For a while every message has two signatures: one by the old secret, too.
    """
    await visible_project(store, caller, project_id)
    response.headers["Cache-Control"] = "no-store"
    overlap = timedelta(milliseconds=(request or RotateSecret()).overlap_ms)
    secret = await Endpoints(store, settings).rotate_project_secret(project_id, overlap)
    return NewSecretOut(secret=secret)


async def visible_project(store: Store, caller: ApiKey, project_id: int) -> Project:
    """The project, if the caller may see it. Raises `ProjectNotFound`."""
    if not caller.may_see(project_id):
        raise ProjectNotFound(f"There is no project {project_id}.")
    return await store.projects.get(project_id)
