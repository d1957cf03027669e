"""`botpool projects`: who owns bots, keys and webhook endpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import Api, ask
from botpool.cli.options import HOUR_MS, OverlapHours, project_id_of
from botpool.cli.output import AsJson, Column, hint, print_json, print_table, say

if TYPE_CHECKING:
    from botpool.cli.output import Row

Json = dict[str, Any]

app = typer.Typer(
    name="projects",
    help="Create, show, change and delete projects, which own bots, keys and webhooks. Asks the"
    " API; where none runs, uses the database.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The project's name.")]
MaxLiveBots = Annotated[
    str | None, typer.Option(help="How many bots it may have at once; `none` for no limit.")
]
MaxCreations = Annotated[
    str | None,
    typer.Option(help="How many bots it may create in a minute; `none` for no limit."),
]
MaxDuration = Annotated[
    str | None, typer.Option(help="How long its bots may stay, in ms; `none` for no limit.")
]

_NUMBERS = ("live", "waiting", "createdToday", "failedToday")
_LIMITS = ("maxLiveBots", "maxCreationsPerMinute", "maxDurationMs")
_COLUMNS = (
    Column("id", right=True),
    Column("name"),
    *(Column(name, right=True) for name in ("live", "waiting", "today", "failed")),
    *(Column(name, right=True) for name in ("max live", "a minute", "max ms")),
)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show every project, its numbers and its limits.

    Numbers are of bots: those that live, wait, were created today, UTC, and of these failed. Limits
    are of bots at once, of creations a minute, and of a stay in ms.
    """
    found = ask(lambda api: api.get("/projects"), needs_server=False)
    if as_json:
        print_json(found)
    else:
        _print(found["projects"])


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one project."""

    async def found(api: Api) -> Json:
        return await api.get(f"/projects/{await project_id_of(api, name)}")

    _show(ask(found, needs_server=False), as_json=as_json)


@app.command()
def create(
    name: Name,
    max_live_bots: MaxLiveBots = None,
    max_creations_per_minute: MaxCreations = None,
    max_duration_ms: MaxDuration = None,
    as_json: AsJson = False,
) -> None:
    """Create a project. Then create keys for it: `botpool keys create NAME --project PROJECT`."""
    limits = _limits(max_live_bots, max_creations_per_minute, max_duration_ms)

    async def created(api: Api) -> Json:
        return await api.post("/projects", {"name": name, "limits": limits})

    made = ask(created, needs_server=False)
    if as_json:
        print_json(made)
        return
    project, secret = made["project"], made["webhookSecret"]
    say(f"created project {project['id']}: {project['name']}")
    say(f"Its callback URLs get what this secret signs; it can't be shown again: {secret}")


@app.command("rotate-secret")
def rotate_secret(name: Name, overlap_hours: OverlapHours = 24, as_json: AsJson = False) -> None:
    """Replace the secret that signs what callback URLs get, and print the new one."""

    async def rotated(api: Api) -> Json:
        path = f"/projects/{await project_id_of(api, name)}/rotate-secret"
        return await api.post(path, {"overlapMs": int(overlap_hours * HOUR_MS)})

    show_secret(ask(rotated, needs_server=False), overlap_hours, as_json=as_json)


@app.command()
def update(
    name: Name,
    rename: Annotated[str | None, typer.Option(help="Another name.")] = None,
    max_live_bots: MaxLiveBots = None,
    max_creations_per_minute: MaxCreations = None,
    max_duration_ms: MaxDuration = None,
    as_json: AsJson = False,
) -> None:
    """Change a project's name or limits. A lower limit ends no bot that lives."""
    changes: Json = {"limits": _limits(max_live_bots, max_creations_per_minute, max_duration_ms)}
    if rename is not None:
        changes["name"] = rename

    async def changed(api: Api) -> Json:
        return await api.patch(f"/projects/{await project_id_of(api, name)}", changes)

    _show(ask(changed, needs_server=False), as_json=as_json)


@app.command()
def delete(name: Name) -> None:
    """Delete a project without live bots: its ended bots, its keys and its webhooks, too."""

    async def deleted(api: Api) -> None:
        await api.delete(f"/projects/{await project_id_of(api, name)}")

    ask(deleted, needs_server=False)
    say(f"deleted project {name}")


def show_secret(found: Json, overlap_hours: float, *, as_json: bool) -> None:
    """Print a new secret alone, and what to know about it beside it."""
    if as_json:
        print_json(found)
        return
    say(found["secret"])
    hint(
        f"The old secret signs, too, for another {overlap_hours:g} hours. Keep the new one: it"
        " can't be shown again."
    )


def _limits(*given: str | None) -> dict[str, int | None]:
    """The limits that were given, as numbers; `none` is no limit."""
    limits: dict[str, int | None] = {}
    for name, text in zip(_LIMITS, given, strict=True):
        if text is not None:
            if not re.fullmatch(r"none|[0-9]{1,9}", text):
                option = re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)
                raise typer.BadParameter(f"--{option} must be a number or `none`.")
            limits[name] = None if text == "none" else int(text)
    return limits


def _show(project: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(project)
    else:
        _print([project])


def _print(projects: list[Json]) -> None:
    print_table(_COLUMNS, map(_row, projects), "no project")


def _row(project: Json) -> Row:
    limits = (project["limits"][name] for name in _LIMITS)
    return (
        str(project["id"]),
        project["name"],
        *(str(project["numbers"][name]) for name in _NUMBERS),
        *("" if limit is None else str(limit) for limit in limits),
    )
