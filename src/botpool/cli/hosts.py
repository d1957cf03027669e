"""`botpool hosts`: the machines that slots are on."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from botpool.cli.api import Api, ask
from botpool.cli.output import (
    AsJson,
    Column,
    Styled,
    age,
    host_cell,
    print_json,
    print_table,
    say,
)
from botpool.quantities import pulled

Json = dict[str, Any]

app = typer.Typer(
    name="hosts",
    help="List hosts, drain them, and bring images to them. Asks the API.",
    no_args_is_help=True,
)

Engine = Annotated[str, typer.Argument(help="The engine, such as docker.")]
Host = Annotated[str, typer.Argument(help="The host, as `botpool hosts list` shows it.")]

_COLUMNS = (
    Column("engine"),
    Column("host"),
    Column("status"),
    Column("slots", right=True),
    Column("running", right=True),
    Column("room", right=True),
    Column("images", folds=True),
    Column("note", folds=True),
)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List every host: its health, its room, what runs there, and its images."""
    found = ask(lambda api: api.get("/hosts"))
    if as_json:
        print_json(found)
    else:
        print_hosts(found["hosts"])


@app.command()
def drain(engine: Engine, host: Host, as_json: AsJson = False) -> None:
    """Give a host no new work until it is undrained. The bots that run there stay."""
    drained = ask(lambda api: api.post(f"{_path(engine, host)}/drain"))
    _tell(drained, f"drained: it gets no new work; {drained['running']} bots run on", as_json)


@app.command()
def undrain(engine: Engine, host: Host, as_json: AsJson = False) -> None:
    """Give a drained host new work again."""
    undrained = ask(lambda api: api.post(f"{_path(engine, host)}/undrain"))
    _tell(undrained, "gets new work again", as_json)


@app.command()
def pull(
    engine: Engine,
    host: Host,
    image: Annotated[
        str | None, typer.Argument(help="The image; by default those of all platforms.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring an image to a host now, before a bot needs it: a worker does it.

    `botpool hosts list` shows how far it is.
    """

    async def asked(api: Api) -> Json:
        return await api.post(f"{_path(engine, host)}/pull", {"image": image} if image else None)

    _tell(ask(asked), f"is asked to pull {image or 'the images of all platforms'}", as_json)


def print_hosts(hosts: list[Json]) -> None:
    """Print hosts as a table."""
    print_table(_COLUMNS, map(_row, hosts), "no host is known yet: a worker tells of them")


def _path(engine: str, host: str) -> str:
    return f"/hosts/{quote(engine, safe='')}/{quote(host, safe='')}"


def _tell(host: Json, what: str, as_json: bool) -> None:
    if as_json:
        print_json(host)
    else:
        say(f"{host['engine']} {host['host']} {what}")


def _row(host: Json) -> tuple[str | Styled, ...]:
    return (
        host["engine"],
        host["host"],
        host_cell(host),
        str(host["slots"]),
        str(host["running"]),
        "any" if host["room"] is None else str(host["room"]),
        ", ".join(map(_image, host["images"])),
        _note(host),
    )


def _image(image: Json) -> str:
    if image["status"] == "pulling":
        return f"{image['image']} ({pulled(image['current'], image['total'])})"
    if image["status"] == "failed":
        return f"{image['image']} (failed: {image['error']})"
    return f"{image['image']}{'' if image['status'] == 'present' else ' (asked)'}"


def _note(host: Json) -> str:
    if host["status"] == "unhealthy":
        return f"for {age(host['unhealthySince'])}: {host['reason']}"
    return "" if host["open"] else f"doesn't answer: {host['reason'] or ''}"
