"""`botpool slots`: list, show, recover, drain and delete slots; take over an existing pool."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from pydantic.alias_generators import to_camel

from botpool.cli.api import LARGEST_ID, Api, ask
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.options import Cursor, Limit, PlatformName
from botpool.cli.output import (
    AsJson,
    Column,
    Styled,
    age,
    clock,
    moment,
    print_facts,
    print_json,
    print_table,
    say,
    status_cell,
    tell_of_more,
)
from botpool.cli.start import start
from botpool.errors import SettingsInvalid
from botpool.states import SlotStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.cli.output import Row
    from botpool.engines.coolify.engine import CoolifyEngine
    from botpool.importing import ImportedApplication, Orders

Json = dict[str, Any]

app = typer.Typer(
    name="slots",
    help="List, show, recover, drain, compare and delete slots: asks the API. Take over an existing"
    " pool (import): uses the database and needs no server.",
    no_args_is_help=True,
)

SlotRef = Annotated[
    str,
    typer.Argument(metavar="SLOT", help="The slot's name, such as pool-zoom-007, or its id."),
]

_IMPORT_STYLES = {"imported": "green", "removed": "red", "left": "yellow"}
_SLOTS = (
    Column("id", right=True),
    Column("slot"),
    Column("status"),
    Column("bot", right=True),
    Column("used", right=True),
    Column("where", folds=True),
    Column("note", folds=True),
)
_IMPORTED = (
    Column("slot"),
    Column("application", folds=True),
    Column("outcome"),
    Column("why", folds=True),
)
_LAST_EVENTS = 20


@app.command("list")
def list_command(
    status: Annotated[
        list[SlotStatus] | None, typer.Option(help="Of a status; may be given several times.")
    ] = None,
    platform: Annotated[PlatformName | None, typer.Option(help="Of a platform.")] = None,
    container_ref: Annotated[str | None, typer.Option(help="Of a container.")] = None,
    bot: Annotated[int | None, typer.Option(min=0, help="Of a bot.")] = None,
    limit: Limit = 200,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List slots, by name."""

    async def found(api: Api) -> Json:
        return await api.pages(
            "/slots",
            "slots",
            limit,
            cursor,
            status=status,
            platform=platform,
            containerRef=container_ref,
            assignedBotId=bot,
        )

    page = ask(found)
    if as_json:
        print_json(page)
        return
    print_table(_SLOTS, map(_row, page["slots"]), "no slot")
    tell_of_more(page)


def _row(slot: Json) -> Row:
    return (
        str(slot["id"]),
        slot["slotName"],
        status_cell(slot["status"]),
        str(slot["assignedBotId"] or ""),
        age(slot["lastUsedAt"]),
        "/".join(filter(None, (slot["engine"], slot["host"]))),
        _note(slot),
    )


def _note(slot: Json) -> str:
    notes = ["draining"] if slot["draining"] else []
    if slot["errorMessage"] and slot["status"] == "error":
        notes.append(slot["errorMessage"])
    if slot["waitingFor"] is not None:
        notes.append(f"waits for {slot['waitingFor']['what']}")
    return "; ".join(notes)


@app.command()
def show(
    slot_ref: SlotRef,
    timeline: Annotated[bool, typer.Option(help="Show what happened to it lately.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show one slot, and what happened to it, the newest first."""

    async def found(api: Api) -> tuple[Json, list[Json]]:
        slot = await _slot(api, slot_ref)
        if as_json or not timeline:
            return slot, []
        page = await api.get(f"/slots/{slot['id']}/timeline", limit=_LAST_EVENTS)
        return slot, page["events"]

    slot, events = ask(found)
    if as_json:
        print_json(slot)
        return
    waiting = slot["waitingFor"]
    error = slot["errorMessage"]
    print_facts(
        (
            ("slot", f"{slot['slotName']} (id {slot['id']})"),
            ("status", status_cell(slot["status"])),
            ("error", error and Styled(error, "bold red" if slot["status"] == "error" else "")),
            ("recoveries", str(slot["recoveryAttempts"] or "")),
            ("waits for", waiting and f"{waiting['what']}: {waiting['detail']}"),
            ("draining", "yes: it gets no further bot" if slot["draining"] else None),
            ("bot", slot["assignedBotId"] and str(slot["assignedBotId"])),
            ("lease", str(slot["lease"])),
            ("host", "/".join(filter(None, (slot["engine"], slot["host"])))),
            ("image", slot["image"]),
            ("container", slot["containerRef"]),
            ("engine says", slot["comparedSaid"]),
            ("last bot", moment(slot["lastAssignedAt"])),
            ("released", moment(slot["lastReleasedAt"])),
            ("created", moment(slot["createdAt"])),
        )
    )
    if events:
        say()
        columns = (Column("time"), Column("status"), Column("bot", right=True))
        print_table((*columns, Column("why", folds=True)), map(_event_row, events), "")


def _event_row(event: Json) -> Row:
    data = event["data"]
    return (
        clock(event["timestamp"]),
        status_cell(data["status"] or "deleted"),
        str(data["botId"] or ""),
        data["reason"],
    )


@app.command()
def recover(slot_ref: SlotRef, as_json: AsJson = False) -> None:
    """Have a slot in error recovered now: a worker does it.

    A slot in any other status is left as it is. `botpool recover` recovers all that is stuck.
    """

    async def recovered(api: Api) -> tuple[Json, Json]:
        before = await _slot(api, slot_ref)
        return before, await api.post(f"/slots/{before['id']}/recover")

    before, slot = ask(recovered)
    if before["status"] == "error":
        _tell(slot, "a worker recovers it", as_json=as_json)
    else:
        _tell(slot, f"is {slot['status']}: there is nothing to recover", as_json=as_json)


@app.command()
def drain(slot_ref: SlotRef, as_json: AsJson = False) -> None:
    """Drain a slot: it gets no further bot, and is deleted once it has none."""
    slot = ask(lambda api: _post(api, slot_ref, "drain"))
    bot = slot["assignedBotId"]
    when = f"it is deleted when bot {bot} has ended" if bot else "it has no bot, and is deleted"
    _tell(slot, when, as_json=as_json)


@app.command()
def compare(slot_ref: SlotRef, as_json: AsJson = False) -> None:
    """Compare a slot with its engine now, and set right what differs: a worker does it.

    `botpool slots show` then has what the engine says.
    """
    _tell(ask(lambda api: _post(api, slot_ref, "compare")), "its engine is asked", as_json=as_json)


@app.command()
def delete(slot_ref: SlotRef, as_json: AsJson = False) -> None:
    """Delete a slot that has no bot; a worker removes its container."""

    async def deleted(api: Api) -> Json:
        return await api.delete(f"/slots/{(await _slot(api, slot_ref))['id']}")

    _tell(ask(deleted), "it is deleted", as_json=as_json)


async def _slot(api: Api, slot_ref: str) -> Json:
    """The slot with a name or an id."""
    if slot_ref.isascii() and slot_ref.isdigit():
        if int(slot_ref) > LARGEST_ID:
            raise CommandFailed(f"There is no slot {slot_ref}.", Exit.NOT_FOUND)
        return await api.get(f"/slots/{int(slot_ref)}")
    found: list[Json] = (await api.get("/slots", slotName=slot_ref))["slots"]
    if not found:
        raise CommandFailed(f"There is no slot {slot_ref}.", Exit.NOT_FOUND)
    return found[0]


async def _post(api: Api, slot_ref: str, what: str) -> Json:
    return await api.post(f"/slots/{(await _slot(api, slot_ref))['id']}/{what}")


def _tell(slot: Json, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(slot)
    else:
        say(f"{slot['slotName']}: {what}")


# On the database and the engine


@app.command("import")
def import_command(
    stop: Annotated[
        bool, typer.Option("--stop", help="Import running applications too; this stops them.")
    ] = False,
    remove_duplicates: Annotated[
        bool,
        typer.Option(
            "--remove-duplicates", help="Delete stopped applications that share another's name."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn applications on Coolify that are named like slots, such as pool-zoom-007, into slots.

    The name may have a prefix before `pool-`. Stop the system that used the applications first.
    Each slot is idle once a running botpool has proved it stopped. You can run this again. It uses
    the database and Coolify, and needs no server.
    """
    # Imported here because it takes long, and no other command needs it.
    from botpool.importing import Orders, Outcome  # noqa: PLC0415

    orders = Orders(stop=stop, remove_duplicates=remove_duplicates, dry_run=dry_run)
    told = asyncio.run(_import(orders))
    if as_json:
        rows = [dataclasses.asdict(row) for row in told]
        print_json([{to_camel(name): value for name, value in row.items()} for row in rows])
        return
    if not told:
        say("no application is named like a slot")
        return
    _print_imported(told)
    outcomes = Counter(row.outcome for row in told)
    counts = ", ".join(f"{outcomes[each]} {each}" for each in Outcome if outcomes[each])
    say(f"{'would be: ' if dry_run else ''}{counts}")


async def _import(orders: Orders) -> list[ImportedApplication]:
    from botpool.engines import make_engines  # noqa: PLC0415 - as above
    from botpool.engines.base import EngineName  # noqa: PLC0415
    from botpool.importing import import_slots  # noqa: PLC0415
    from botpool.pool import Pool  # noqa: PLC0415
    from botpool.store import Store, check_schema, open_database  # noqa: PLC0415

    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        engines = make_engines(settings, await store.installation.name())
        if EngineName.COOLIFY not in engines:
            raise SettingsInvalid(
                "BOTPOOL_COOLIFY_API_URL must be set: slots are imported from Coolify."
            )
        pool = Pool(store, settings)
        await pool.queue.configure()
        try:
            return await import_slots(
                store, pool, cast("CoolifyEngine", engines[EngineName.COOLIFY]), orders
            )
        finally:
            for engine in engines.values():
                await engine.close()


def _print_imported(told: Sequence[ImportedApplication]) -> None:
    rows = (
        (
            row.slot_name,
            f"{row.name} ({row.container_ref})",
            Styled(row.outcome, _IMPORT_STYLES.get(row.outcome, "")),
            row.why,
        )
        for row in told
    )
    print_table(_IMPORTED, rows, "")
