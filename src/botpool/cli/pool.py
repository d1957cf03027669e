"""`botpool pool`, `status`, `queue`, `replicas`, `pause` and `resume`: what there is now."""

from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import Api, ask
from botpool.cli.exits import CommandFailed
from botpool.cli.options import Cursor, Limit, PlatformName
from botpool.cli.output import (
    AsJson,
    Column,
    Styled,
    age,
    clock,
    host_cell,
    on_terminal,
    plain,
    print_json,
    print_json_line,
    print_table,
    rich_lines,
    say,
    status_cell,
    tell_of_more,
    terminal,
    time_of,
    while_read,
)
from botpool.cli.patience import Patience
from botpool.models.replicas import ReplicaCounts, ReplicaRole
from botpool.quantities import elapsed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from botpool.cli.output import Row

Json = dict[str, Any]

_MENDS = {
    "slot_error": "botpool recover",
    "host_drained": "botpool hosts undrain {engine} {host}",
    "pool_paused": "botpool resume {platform}",
    "wait_near_deadline": "botpool queue",
    "wait_over_estimate": "botpool queue",
    "pool_full": "botpool queue",
    "bots_failing": "botpool bots list --status FATAL",
    "webhook_paused": "botpool webhooks update {webhookId} --resume",
    "webhook_failing": "botpool webhooks deliveries --webhook {webhookId}",
}
"""The command that mends what needs a person, or shows more of it."""

_WATCH_SECONDS = 1.0
_MOST_BOTS = 200
_LIVE = ("QUEUED", "DEPLOYING", "JOINING_CALL", "IN_WAITING_ROOM", "IN_CALL", "LEAVING")
_STATUSES = ("idle", "deploying", "busy", "releasing", "error")
_NUMBERS = ("total", *_STATUSES, "queued", "maxSize")
_POOL = (
    Column("platform"),
    *(Column(name.removesuffix("Size"), right=True) for name in _NUMBERS),
)
_HOSTS = (
    Column("host"),
    Column("engine"),
    Column("status"),
    Column("slots", right=True),
    Column("running", right=True),
    Column("room", right=True),
)
_REPLICAS = (
    Column("replica"),
    Column("role"),
    Column("version"),
    Column("runs for", right=True),
    Column("seen", right=True),
)
_QUEUE = (
    Column("platform"),
    Column("place", right=True),
    Column("bot", right=True),
    Column("priority", right=True),
    Column("waits for", right=True),
    Column("gives up in", right=True),
)
_WIDE = 110
"""How many columns a terminal has that shows the slot of each bot, too."""


def pool(
    watch: Annotated[
        bool, typer.Option("--watch", help="A live screen; elsewhere a line for each change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what needs a person, the slots of each platform by status, the hosts and what runs.

    It needs no server: where none runs, it reads the database, and says that no botpool runs.
    With --watch it needs one, and goes on until Ctrl-C, also across a restart; with --json it then
    prints a line for each change.
    """
    if watch:
        ask(lambda api: _watch(api, as_json=as_json))
        return
    found = ask(_read, needs_server=False)
    if as_json:
        print_json(found)
        return
    for line in _needs(found):
        say(line)
    print_table(_POOL, map(_pool_row, found["platforms"]), "")
    if found["hosts"]:
        say()
        print_table(_HOSTS, map(_host_row, found["hosts"]), "")
    if found["replicas"]:
        say()
        print_table(_REPLICAS, map(_replica_row, found["replicas"]), "")


def status(as_json: AsJson = False) -> None:
    """Show what `botpool pool` shows."""
    pool(watch=False, as_json=as_json)


async def _read(api: Api) -> Json:
    found = await api.get("/pool")
    return {
        **found,
        "replicas": (await api.get("/replicas"))["replicas"],
        "needs": (await api.get("/attention"))["needs"],
    }


def _needs(found: Json) -> list[str]:
    """What needs a person, in lines, with what mends it; and a blank one."""
    roles = [ReplicaRole(replica["role"]) for replica in found["replicas"]]
    lines: list[str] = []
    lacking = ReplicaCounts.of_roles(roles).lacking
    if lacking is not None:
        lines += [f"! {lacking.found}.", f"  → {lacking.mend}"]
    for need in found["needs"]:
        if need["kind"] == "no_worker" and lacking is not None:
            continue
        began = time_of(need["since"])
        past = began is not None and began < datetime.now(UTC)
        since = f" (for {age(need['since'])})" if past else ""
        mark = {"urgent": "!", "soon": "*"}.get(need["severity"], "-")
        lines.append(f"{mark} {plain(need['sentence'])}{since}")
        if (mend := _mend(need)) is not None:
            lines.append(f"  → {mend}")
    return [*lines, ""] if lines else []


def _mend(need: Json) -> str | None:
    """The command that mends it, where there is one."""
    command = _MENDS.get(need["kind"])
    if command is not None:
        return command.format_map({name: shlex.quote(str(value)) for name, value in need.items()})
    return (need["action"] or {}).get("command")


def _pool_row(row: Json) -> Row:
    numbers = (Styled(str(row[name]), _style(name) if row[name] else "dim") for name in _NUMBERS)
    return (Styled(row["platform"], "yellow") if row["pausedAt"] else row["platform"], *numbers)


def _style(name: str) -> str:
    return "yellow" if name == "queued" else status_cell(name).style


def _host_row(host: Json) -> Row:
    return (
        host["host"],
        host["engine"],
        host_cell(host),
        str(host["slots"]),
        str(host["running"]),
        "any" if host["room"] is None else str(host["room"]),
    )


def _replica_row(replica: Json) -> Row:
    return (
        replica["name"],
        replica["role"],
        replica["version"],
        age(replica["startedAt"]),
        f"{age(replica['lastSeenAt'])} ago",
    )


# The live screen


async def _watch(api: Api, *, as_json: bool) -> None:
    async with while_read():
        if on_terminal() and not as_json:
            await _screen(api)
        else:
            await _changes(api, as_json=as_json)


async def _changes(api: Api, *, as_json: bool) -> None:
    """A line for each platform whose numbers have changed, or all as one line of JSON."""
    patience = Patience(api)
    before: dict[str, object] = {}
    while True:
        found = await patience.call(lambda: api.get("/pool"))
        now: dict[str, object] = {row["platform"]: row for row in found["platforms"]}
        if as_json and now != before:
            print_json_line(found)
        for row in () if as_json else found["platforms"]:
            if row != before.get(row["platform"]):
                numbers = "  ".join(f"{name} {row[name]}" for name in _NUMBERS)
                paused = "  paused" if row["pausedAt"] else ""
                say(f"{datetime.now():%H:%M:%S}  {row['platform']:<15}  {numbers}{paused}")
        before = now
        await asyncio.sleep(_WATCH_SECONDS)


async def _screen(api: Api) -> None:
    from rich.live import Live  # noqa: PLC0415 - takes long

    found = await _look(api)
    away: tuple[datetime, str] | None = None
    with Live(console=terminal(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_picture(found, away), refresh=True)
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                if away is not None:
                    await api.find_again()
                found, away = await _look(api), None
            except CommandFailed as error:
                if not error.may_pass:
                    raise
                away = (away[0] if away else datetime.now(UTC), str(error))


async def _look(api: Api) -> Json:
    bots = await api.get("/bots", status=_LIVE, limit=_MOST_BOTS)
    return {**await _read(api), "bots": bots["bots"]}


def _picture(found: Json, away: tuple[datetime, str] | None) -> RenderableType:
    """The screen. What doesn't fit is left out at its end, and counted."""
    from rich.console import Group  # noqa: PLC0415 - takes long
    from rich.text import Text  # noqa: PLC0415

    size = terminal().size
    in_slots = sum(row["deploying"] + row["busy"] for row in found["platforms"])
    waiting = sum(row["queued"] for row in found["platforms"])
    head = Text.assemble(
        ("botpool", "bold"),
        f"  {datetime.now():%H:%M:%S}  {in_slots} in slots, {waiting} wait.  Ctrl-C ends it.",
    )
    lines = [head, Text()]
    if away is not None:
        since, why = away
        lines.append(Text(f"No answer for {elapsed(datetime.now(UTC) - since)}: {why}", "bold red"))
    lines += [Text(line, _need_style(line)) for line in _needs(found)]
    lines += rich_lines(_POOL, [_pool_row(row) for row in found["platforms"]])
    if found["hosts"]:
        lines += [Text(), *rich_lines(_HOSTS, [_host_row(host) for host in found["hosts"]])]
    bots = found["bots"]
    room = max(1, size.height - len(lines) - 3)
    if bots:
        wide = size.width >= _WIDE
        columns = [Column(name) for name in ("bot", "status", "for", "now")]
        columns += [Column(name) for name in (("slot", "meeting") if wide else ("meeting",))]
        lines += [Text(), *rich_lines(columns, [_bot_row(bot, wide) for bot in bots[:room]])]
    if len(bots) > room:
        lines.append(Text(f"… and {len(bots) - room} more", "dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _need_style(line: str) -> str:
    return "bold red" if line.startswith("!") else "yellow" if line.startswith("*") else ""


def _bot_row(bot: Json, wide: bool) -> Row:
    waiting = bot["waitingFor"]
    now = "" if waiting is None else f"waits for {waiting['what']}"
    if waiting and waiting["total"]:
        now += f", {100 * (waiting['current'] or 0) // waiting['total']} %"
    return (
        str(bot["id"]),
        status_cell(bot["status"]),
        age(bot["joinedAt"] or bot["createdAt"]),
        now,
        *((bot["slotName"] or "",) if wide else ()),
        bot["meetingUrl"].removeprefix("https://").partition("?")[0],
    )


# The rest


def queue(
    platform: Annotated[PlatformName | None, typer.Option(help="Of a platform.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the bots that wait, in the order in which they will get a slot."""
    page = ask(lambda api: api.pages("/queue", "entries", limit, cursor, platform=platform))
    if as_json:
        print_json(page)
        return
    print_table(_QUEUE, map(_queue_row, page["entries"]), "no bot waits")
    tell_of_more(page)


def _queue_row(entry: Json) -> Row:
    gives_up = time_of(entry["timeoutAt"])
    left = "" if gives_up is None else elapsed(gives_up - datetime.now(UTC))
    return (
        entry["platform"],
        str(entry["position"]),
        str(entry["botId"]),
        str(entry["priority"]),
        age(entry["queuedAt"]),
        left,
    )


def replicas(as_json: AsJson = False) -> None:
    """List the running botpools on the database. It needs no server."""
    found = ask(lambda api: api.get("/replicas"), needs_server=False)
    if as_json:
        print_json(found)
        return
    print_table(_REPLICAS, map(_replica_row, found["replicas"]), "no botpool runs on this database")


def pause(
    platform: PlatformName,
    reason: Annotated[str | None, typer.Option(help="Why, for other operators.")] = None,
    as_json: AsJson = False,
) -> None:
    """Launch no bot of a platform until `botpool resume`. Bots that have a slot stay on it."""

    async def paused(api: Api) -> Json:
        body = {"reason": reason} if reason is not None else None
        return await api.post(f"/pools/{platform}/pause", body)

    found = ask(paused)
    if as_json:
        print_json(found)
    else:
        since = clock(found["pausedAt"])
        say(f"{found['platform']} is paused since {since}: its bots wait ({found['queued']} now)")


def resume(platform: PlatformName, as_json: AsJson = False) -> None:
    """Launch bots of a platform again. Those that wait are served at once, in order."""
    found = ask(lambda api: api.post(f"/pools/{platform}/resume"))
    if as_json:
        print_json(found)
    else:
        say(f"{found['platform']} launches bots again")
