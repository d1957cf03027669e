"""`botpool keys`: the keys of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import Api, ask
from botpool.cli.options import HOUR_MS, OverlapHours, project_id_of
from botpool.cli.output import AsJson, Column, age, hint, print_json, print_table, say, time_of
from botpool.states import Role

if TYPE_CHECKING:
    from botpool.cli.output import Row

Json = dict[str, Any]

app = typer.Typer(
    name="keys",
    help="Create, list, rotate and revoke API keys. Asks the API; where none runs, uses the"
    " database.",
    no_args_is_help=True,
)

KeyId = Annotated[
    int,
    typer.Argument(metavar="ID", min=1, help="The key's id, as `botpool keys list` shows it."),
]

_COLUMNS = (
    Column("id", right=True),
    Column("name"),
    Column("role"),
    Column("project", folds=True),
    Column("key"),
    Column("last used", right=True),
    Column("expires"),
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, such as the caller's name.")],
    role: Annotated[
        Role,
        typer.Option(
            help="An admin may do everything, a viewer see everything, and a client use its"
            " project's bots."
        ),
    ] = Role.CLIENT,
    project: Annotated[
        str | None, typer.Option(help="The name of a client's project, if it isn't the default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It can't be shown again."""

    async def created(api: Api) -> Json:
        body: Json = {"name": name, "role": role}
        if project is not None:
            body["projectId"] = await project_id_of(api, project)
        return await api.post("/keys", body)

    made = ask(created, needs_server=False)
    if as_json:
        print_json(made)
        return
    say(made["secret"])
    key = made["key"]
    hint(f"This is key {key['id']}, with the role {key['role']}. Keep it: it can't be shown again.")


@app.command()
def rotate(
    key_id: KeyId,
    overlap_hours: OverlapHours = 24,
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one like it, and print that. The old key works for a while."""

    async def rotated(api: Api) -> Json:
        return await api.post(f"/keys/{key_id}/rotate", {"overlapMs": int(overlap_hours * HOUR_MS)})

    made = ask(rotated, needs_server=False)
    if as_json:
        print_json(made)
        return
    say(made["secret"])
    hint(
        f"This is key {made['key']['id']}, in place of key {key_id}, which works for another"
        f" {overlap_hours:g} hours. Keep it: it can't be shown again."
    )


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show every key, when it was last used, and when it stops or stopped working."""

    async def found(api: Api) -> tuple[Json, dict[int, str]]:
        projects = (await api.get("/projects"))["projects"]
        return await api.get("/keys"), {project["id"]: project["name"] for project in projects}

    keys, projects = ask(found, needs_server=False)
    if as_json:
        print_json(keys)
    else:
        print_table(_COLUMNS, (_row(key, projects) for key in keys["keys"]), "no key")


@app.command()
def revoke(key_id: KeyId, as_json: AsJson = False) -> None:
    """Revoke a key. Every replica refuses it within seconds. Its project keeps its bots."""
    key = ask(lambda api: api.delete(f"/keys/{key_id}"), needs_server=False)
    if as_json:
        print_json(key)
    else:
        say(f"revoked key {key['id']}: {key['name']}")


def _row(key: Json, projects: dict[int, str]) -> Row:
    expires = time_of(key["expiresAt"])
    return (
        str(key["id"]),
        key["name"],
        key["role"],
        projects.get(key["projectId"] or 0, "all"),
        f"{key['prefix']}…" if key["prefix"] else "",
        f"{age(key['lastUsedAt'])} ago" if key["lastUsedAt"] else "",
        "" if expires is None else f"{expires:%Y-%m-%d %H:%M}",
    )
