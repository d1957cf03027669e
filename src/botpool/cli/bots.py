"""`botpool bots`: create, show and stop bots, read their logs, and watch them."""

from __future__ import annotations

import asyncio
import json
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import Api, ask
from botpool.cli.events import Events
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.launch import Until, outcome, wait_for
from botpool.cli.options import Cursor, Limit, PlatformName, project_id_of
from botpool.cli.output import (
    AsJson,
    Column,
    Styled,
    age,
    clock,
    hint,
    moment,
    plain,
    print_facts,
    print_json,
    print_json_line,
    print_table,
    say,
    status_cell,
    tell_of_more,
    while_read,
    without_control,
)
from botpool.cli.patience import Patience
from botpool.quantities import milliseconds, ordinal
from botpool.states import BotStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json = dict[str, Any]

app = typer.Typer(
    name="bots",
    help="Create, list, show, stop and delete bots; read their logs; watch them. Asks the API.",
    no_args_is_help=True,
)

BotId = Annotated[int, typer.Argument(metavar="ID", min=0, help="The bot's id.")]
BotIds = Annotated[list[int], typer.Argument(metavar="ID", min=0, help="The bots' ids.")]
Project = Annotated[str | None, typer.Option(help="The name of its project.")]

_MOST_AT_ONCE = 100
_FOLLOW_SECONDS = 1.0
_QUIET_LOOKS = 3
_COLUMNS = (
    Column("id", right=True),
    Column("status"),
    Column("created", right=True),
    Column("now"),
    Column("slot"),
    Column("meeting", folds=True),
)


@app.command()
def create(
    meeting_url: Annotated[str, typer.Argument(metavar="URL", help="The URL of the meeting.")],
    name: Annotated[
        str | None, typer.Option("--name", "--bot-display-name", help="Its name in the call.")
    ] = None,
    platform: Annotated[
        PlatformName | None, typer.Option(help="The platform, if the URL doesn't tell.")
    ] = None,
    queue_timeout_ms: Annotated[
        int | None, typer.Option(min=0, help="How long it may wait for a slot.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Bots with a lower number get a slot first.")
    ] = None,
    max_duration_ms: Annotated[int | None, typer.Option(min=1, help="Its longest stay.")] = None,
    max_launch_attempts: Annotated[
        int | None, typer.Option(min=1, help="How many times to launch it if that fails.")
    ] = None,
    relaunch_in_call: Annotated[
        bool, typer.Option("--relaunch-in-call", help="Launch it again also if it fails in call.")
    ] = False,
    callback_url: Annotated[
        str | None, typer.Option(help="Gets a webhook for every change of its status.")
    ] = None,
    deduplication_key: Annotated[
        str | None, typer.Option(help="Refuse it while a live bot has the same key.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Commands with the same key and options create one bot.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Your own data; may be given several times."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE", help="Its configuration: a JSON object, or a file with one."
        ),
    ] = None,
    project: Project = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show its launch, and exit by how it went.")
    ] = False,
    until: Annotated[
        Until | None, typer.Option(help="How long to wait; implies --wait. By default in-call.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="The longest wait, with --wait. The bot stays."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a bot. It gets the next free slot, or a place in the queue.

    With --wait it shows each phase as it passes, and a bar while an image is pulled. It exits with
    0 when the bot is in its call, and with 10, 11 or 12 if it failed, was stopped, or took longer
    than --timeout. With --json it prints the bot at the end.
    """
    asked = {
        "meetingUrl": meeting_url,
        "botDisplayName": name,
        "platform": platform,
        "queueTimeoutMs": queue_timeout_ms,
        "priority": priority,
        "maxDurationMs": max_duration_ms,
        "maxLaunchAttempts": max_launch_attempts,
        "relaunchInCall": relaunch_in_call or None,
        "callbackUrl": callback_url,
        "deduplicationKey": deduplication_key,
        "metadata": _pairs(metadata or ()),
        "config": None if config is None else _config(config),
    }
    body = {name: value for name, value in asked.items() if value not in (None, {})}
    waits = wait or until is not None
    goal = until or Until.IN_CALL

    async def work(api: Api) -> Exit:
        if project is not None:
            body["projectId"] = await project_id_of(api, project)
        key = idempotency_key or str(uuid.uuid4())
        created = await api.post("/bots", body, {"Idempotency-Key": key})
        if not waits:
            _show_created(created, as_json=as_json)
            return Exit.DONE
        bot_id = created["bot"]["id"]
        if not as_json:
            say(_created(created))
        try:
            bot = await wait_for(api, bot_id, goal, timeout, shown=not as_json)
        except asyncio.CancelledError:
            hint(f"Bot {bot_id} goes on: stop it with `botpool bots stop {bot_id}`.")
            raise
        sentence, code = outcome(bot, goal)
        if as_json:
            print_json(bot)
        elif code is Exit.DONE:
            launch = await api.get(f"/bots/{bot_id}/launch")
            say(f"{sentence}{_total(launch)}")
        if code is not Exit.DONE:
            # What the evidence quotes may have several lines.
            hint("botpool: " + without_control(sentence).replace("\n", "\n  "))
        return code

    raise typer.Exit(ask(work))


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise typer.BadParameter("--metadata must be NAME=VALUE.")
        pairs[name] = value
    return pairs


def _config(given: str) -> Json:
    """A JSON object, or the one in the file after an `@`."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text("utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise CommandFailed(
                f"--config: {given[1:]} can't be read: {why}.", Exit.SETUP
            ) from error
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter('--config must be a JSON object, such as {"a": 1}, or @FILE.')
    return found


def _created(created: Mapping[str, Any]) -> str:
    bot = created["bot"]
    where = f" on {bot['slotName']}" if bot["slotName"] else ""
    if created["queuePosition"] is not None:
        where = f", {ordinal(created['queuePosition'])} in the queue"
        if created["estimatedWaitMs"] is not None:
            where += f", about {milliseconds(created['estimatedWaitMs'])} to go"
    return f"bot {bot['id']}: {bot['status']}{where}"


def _show_created(created: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(created)
        return
    say(_created(created))
    hint(f"Watch it with `botpool bots watch {created['bot']['id']}`.")


def _total(launch: Json) -> str:
    if launch["totalMs"] is None:
        return ""
    usual = launch["usualTotal"]["p50"]
    beside = f", usually {milliseconds(usual)}" if usual is not None else ""
    return f", after {milliseconds(launch['totalMs'])}{beside}"


@app.command("list")
def list_command(
    status: Annotated[
        list[BotStatus] | None, typer.Option(help="Of a status; may be given several times.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Those that haven't ended.")] = False,
    platform: Annotated[PlatformName | None, typer.Option(help="Of a platform.")] = None,
    project: Annotated[str | None, typer.Option(help="Of the project with this name.")] = None,
    meeting_url: Annotated[str | None, typer.Option(help="In this meeting.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With this in its metadata.")
    ] = None,
    container_ref: Annotated[str | None, typer.Option(help="Of a container.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="With this correlation id.")] = None,
    deduplication_key: Annotated[str | None, typer.Option(help="With this key.")] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 2026-01-01T00:00:00Z.")
    ] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="The same.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List bots, newest first."""
    statuses = [*(status or ()), *(_LIVE if live else ())]

    async def found(api: Api) -> Json:
        return await api.pages(
            "/bots",
            "bots",
            limit,
            cursor,
            **{
                "status": statuses or None,
                "platform": platform,
                "projectId": None if project is None else await project_id_of(api, project),
                "meetingUrl": meeting_url,
                "containerRef": container_ref,
                "correlationId": correlation_id,
                "deduplicationKey": deduplication_key,
                "createdAfter": created_after,
                "createdBefore": created_before,
                **{f"metadata.{name}": value for name, value in _pairs(metadata or ()).items()},
            },
        )

    page = ask(found)
    if as_json:
        print_json(page)
        return
    print_table(_COLUMNS, map(_row, page["bots"]), "no bot")
    tell_of_more(page)


_LIVE = [status for status in BotStatus if status not in {"DONE", "FATAL", "CANCELLED"}]


def _row(bot: Json) -> tuple[str | Styled, ...]:
    return (
        str(bot["id"]),
        status_cell(bot["status"]),
        age(bot["createdAt"]),
        _now(bot),
        bot["slotName"] or "",
        bot["meetingUrl"],
    )


def _now(bot: Json) -> str:
    """What a bot waits for, or why it ended as it did."""
    if bot["failureCause"] is not None:
        return str(bot["failureCause"])
    waiting = bot["waitingFor"]
    return "" if waiting is None else f"waits for {waiting['what']}"


@app.command()
def show(
    bot_id: BotId,
    timeline: Annotated[bool, typer.Option(help="Show what happened to it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show one bot: what it does or waits for, its launch by phases, and what happened to it.

    With --json it prints the bot alone; --timeline or --no-timeline changes nothing there.
    """

    async def found(api: Api) -> tuple[Json, Json, list[Json]]:
        bot = await api.get(f"/bots/{bot_id}")
        if as_json:
            return bot, {}, []
        launch = await api.get(f"/bots/{bot_id}/launch")
        events = await api.pages(f"/bots/{bot_id}/timeline", "events", None) if timeline else None
        return bot, launch, events["events"] if events else []

    bot, launch, events = ask(found)
    if as_json:
        print_json(bot)
        return
    _show(bot, launch)
    if events:
        say()
        print_table(
            (Column("time"), Column("what"), Column("why", folds=True)), map(_told, events), ""
        )


def _show(bot: Json, launch: Json) -> None:
    failure = bot["failureCause"] and f"{bot['failureCause']}: {bot['failureReason']}"
    waiting = bot["waitingFor"]
    waits = waiting and f"{waiting['what']}: {waiting['detail']}"
    phases = ", ".join(
        f"{phase['name']} {milliseconds(phase['durationMs'])}"
        for phase in launch["phases"]
        if phase["endedAt"] is not None
    )
    slot = bot["slot"] or {}
    where = f"{slot['engine']}, {slot['host']}" if slot.get("engine") else None
    print_facts(
        (
            ("bot", str(bot["id"])),
            ("status", status_cell(bot["status"])),
            ("failed", failure and Styled(failure, "bold red")),
            ("waits for", waits),
            ("error", waiting and waiting["error"]),
            ("queue", bot["queuePosition"] and f"{ordinal(bot['queuePosition'])}"),
            ("meeting", bot["meetingUrl"]),
            ("platform", bot["platform"]),
            ("name", bot["botDisplayName"]),
            ("slot", bot["slotName"]),
            ("host", where),
            ("container", bot["containerRef"]),
            ("exit code", None if bot["exitCode"] is None else str(bot["exitCode"])),
            ("restarts", str(bot["restarts"] or "")),
            ("project", str(bot["projectId"])),
            ("created", moment(bot["createdAt"])),
            ("in call", moment(bot["joinedAt"])),
            ("ended", moment(bot["endedAt"])),
            ("heartbeat", None if bot["endedAt"] else moment(bot["lastHeartbeat"])),
            ("launch", phases and f"{launch['attempt']}: {phases}"),
            ("correlation", bot["correlationId"]),
            ("metadata", json.dumps(bot["metadata"]) if bot["metadata"] else None),
        )
    )


def _told(event: Json) -> tuple[str | Styled, ...]:
    """An event of a timeline or of the stream."""
    data, kind = event["data"], event["type"]
    what: str | Styled
    if kind == "bot.event":
        what, why = f"reports {data['event']['type']}", json.dumps(data["event"]["data"])
    elif kind.startswith("bot."):
        what, why = status_cell(data["status"]), data["failureReason"] or data["reason"]
    else:
        named = data.get("slotName") or data.get("platform") or kind.partition(".")[0]
        what, why = f"{named} {data.get('status') or 'deleted'}", data["reason"]
    return clock(event["timestamp"]), what, why


@app.command()
def stop(
    bot_ids: BotIds,
    reason: Annotated[str | None, typer.Option(help="Why, for its timeline.")] = None,
    as_json: AsJson = False,
) -> None:
    """Stop bots, and tell what came of each.

    A bot that waits is CANCELLED; one in a call is told to leave. Stopping a bot twice, or after
    it has ended, changes nothing. The exit code is 7 if there is no bot of one of these ids.
    """

    async def stopped(api: Api) -> list[Json]:
        results: list[Json] = []
        for first in range(0, len(bot_ids), _MOST_AT_ONCE):
            body: Json = {"ids": bot_ids[first : first + _MOST_AT_ONCE]}
            if reason is not None:
                body["reason"] = reason
            results += (await api.post("/bots/stop", body))["results"]
        return results

    results = ask(stopped)
    if as_json:
        print_json({"results": results})
    for bot_id, result in zip(bot_ids, results, strict=True):
        if "error" in result:
            hint(f"botpool: bot {bot_id}: {result['error']['detail']}")
        elif not as_json:
            say(f"bot {bot_id}: {_stopped(result['bot'])}")
    if any("error" in result for result in results):
        raise typer.Exit(Exit.NOT_FOUND)


def _stopped(bot: Json) -> str:
    match bot["status"]:
        case "DONE" | "FATAL" as status:
            return f"{status}; it had ended"
        case "LEAVING":
            return "LEAVING: it is told to leave"
        case status:
            return str(status)


@app.command()
def delete(bot_id: BotId) -> None:
    """Delete an ended bot: its data, events, logs, timeline and webhooks."""
    ask(lambda api: api.delete(f"/bots/{bot_id}"))
    say(f"deleted bot {bot_id}")


@app.command()
def logs(
    bot_id: BotId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the bot has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the log lines that a bot sent, then what its containers wrote.

    With --follow both come as they are written, also across a restart of botpool. With --json and
    --follow each is one line: {at, level, line}, or {container}.
    """
    if follow:
        ask(lambda api: _follow(api, bot_id, as_json=as_json))
        return
    found = ask(lambda api: _logs(api, bot_id))
    if as_json:
        print_json(found)
        return
    for line in found["lines"]:
        say(_line(line))
    if found["lines"] and found["container"]:
        say("--- what its containers wrote:")
    for text in found["container"]:
        say(without_control(text))
    if not (found["lines"] or found["container"]):
        hint(f"Bot {bot_id} has no logs yet.")


async def _logs(api: Api, bot_id: int) -> Json:
    found = page = await api.get(f"/bots/{bot_id}/logs")
    while page["nextCursor"] is not None:
        page = await api.get(f"/bots/{bot_id}/logs", cursor=page["nextCursor"])
        found["lines"] += page["lines"]
        found["endCursor"] = page["endCursor"]
    return {**found, "nextCursor": None}


async def _follow(api: Api, bot_id: int, *, as_json: bool) -> None:
    patience = Patience(api)
    path = f"/bots/{bot_id}/logs"
    cursor: str | None = None
    written: list[str] = []
    quiet = 0
    async with while_read():
        while True:
            # First, so that what it wrote until its end is read after it.
            bot = await patience.call(lambda: api.get(f"/bots/{bot_id}"))
            stopped = await patience.call(partial(_is_stopped, api, bot))
            first = await patience.call(lambda: api.get(path, limit=1))
            while True:
                page = await patience.call(partial(api.get, path, cursor=cursor))
                for line in page["lines"]:
                    print_json_line(line) if as_json else say(_line(line))
                cursor = page["endCursor"]
                if page["nextCursor"] is None:
                    break
            quiet = 0 if first["container"] != written else quiet + 1
            for text in _new_lines(written, first["container"]):
                print_json_line({"container": text}) if as_json else say(without_control(text))
            written = first["container"]
            # The last of it comes when the container is proved stopped, a little later.
            if stopped or (stopped is None and quiet >= _QUIET_LOOKS):
                break
            await asyncio.sleep(_FOLLOW_SECONDS)
    if not as_json:
        hint(f"Bot {bot_id} has ended: {bot['status']}.")


async def _is_stopped(api: Api, bot: Json) -> bool | None:
    """Whether a bot and its container have ended. `None`: this key may not see the latter."""
    if bot["endedAt"] is None:
        return False
    if bot["containerRef"] is None:
        return True
    try:
        found = await api.get("/slots", containerRef=bot["containerRef"])
    except CommandFailed as error:
        if error.code is not Exit.KEY:
            raise
        return None
    return not any(slot["status"] == "releasing" for slot in found["slots"])


def _new_lines(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """What was written since. Only the newest lines are kept, so the first ones may be gone."""
    for gone in range(len(before) + 1):
        kept = before[gone:]
        if list(now[: len(kept)]) == list(kept):
            return now[len(kept) :]
    return now


def _line(line: Json) -> str:
    return f"{clock(line['at'])} {line['level']:<7} {without_control(line['line'])}"


@app.command()
def watch(
    bot_id: Annotated[
        int | None, typer.Argument(metavar="ID", min=0, help="Only this bot.")
    ] = None,
    platform: Annotated[PlatformName | None, typer.Option(help="Only of a platform.")] = None,
    slots: Annotated[
        bool, typer.Option("--slots", help="What happens to slots, pools and hosts, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print what happens to bots as it happens, one line each, until Ctrl-C.

    It lives through a cut connection and a restart of botpool: each event comes once. With --json
    each line is an event as the stream has it.
    """

    async def watched(api: Api) -> None:
        events = Events(api, botId=bot_id, platform=platform)
        async with while_read():
            async for event in events.follow():
                if not (slots or event["type"].startswith("bot.")):
                    continue
                if as_json:
                    print_json_line(event)
                else:
                    _print_event(event)

    ask(watched)


def _print_event(event: Json) -> None:
    at, what, why = _told(event)
    bot = event["data"].get("botId")
    who = f"bot {bot}" if bot is not None else ""
    say(f"{plain(at)}  {who:<8}  {plain(what):<16}  {plain(why)}".rstrip())
