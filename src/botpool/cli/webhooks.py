"""`botpool webhooks`: the endpoints of projects, and what was delivered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import Api, ask
from botpool.cli.options import HOUR_MS, Cursor, Limit, OverlapHours, project_id_of
from botpool.cli.output import (
    AsJson,
    Column,
    age,
    hint,
    moment,
    print_facts,
    print_json,
    print_table,
    say,
    status_cell,
    tell_of_more,
)
from botpool.cli.projects import show_secret
from botpool.models.events import EventType
from botpool.models.webhooks import ENDPOINT_EVENTS, DeliveryStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.cli.output import Row

Json = dict[str, Any]

app = typer.Typer(
    name="webhooks",
    help="Create, show, change and delete webhook endpoints; show and resend deliveries. Asks the"
    " API; where none runs, uses the database.",
    no_args_is_help=True,
)

WebhookId = Annotated[
    int,
    typer.Argument(metavar="ID", min=1, help="The id, as `botpool webhooks list` shows it."),
]
DeliveryId = Annotated[
    int,
    typer.Argument(metavar="DELIVERY", min=1, help="The id of a delivery."),
]
Project = Annotated[str | None, typer.Option(help="The name of the project.")]
Events = Annotated[
    list[EventType] | None,
    typer.Option(
        "--event",
        help=f"A type of events to post; may be given twice. {', '.join(ENDPOINT_EVENTS)}.",
    ),
]

_ENDPOINTS = (
    Column("id", right=True),
    Column("project", right=True),
    Column("url", folds=True),
    Column("events", folds=True),
    Column("state", folds=True),
)
_DELIVERIES = (
    Column("id", right=True),
    Column("webhook", right=True),
    Column("bot", right=True),
    Column("tries", right=True),
    Column("type"),
    Column("status"),
    Column("created", right=True),
    Column("last answer", folds=True),
)


@app.command("list")
def list_command(project: Project = None, as_json: AsJson = False) -> None:
    """Show every endpoint, or those of a project, and whether they fail or are paused."""

    async def found(api: Api) -> Json:
        return await api.get("/webhooks", projectId=await _id_of(api, project))

    page = ask(found, needs_server=False)
    if as_json:
        print_json(page)
    else:
        _print(page["webhooks"])


@app.command()
def create(
    url: Annotated[str, typer.Argument(help="Where events are posted to.")],
    project: Project = None,
    event: Events = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: AsJson = False,
) -> None:
    """Create an endpoint, and print the secret that signs what it gets. It is shown once."""

    async def made(api: Api) -> Json:
        body: Json = {"url": url, "eventTypes": _chosen(event), "description": description}
        if project is not None:
            body["projectId"] = await project_id_of(api, project)
        return await api.post("/webhooks", body)

    new = ask(made, needs_server=False)
    if as_json:
        print_json(new)
        return
    say(new["secret"])
    webhook_id = new["webhook"]["id"]
    hint(f"This is the secret of webhook {webhook_id}. Keep it: it can't be shown again.")


@app.command()
def show(webhook_id: WebhookId, as_json: AsJson = False) -> None:
    """Show one endpoint."""
    _show(ask(lambda api: api.get(f"/webhooks/{webhook_id}"), needs_server=False), as_json=as_json)


@app.command()
def update(
    webhook_id: WebhookId,
    url: Annotated[str | None, typer.Option(help="Where events are posted to.")] = None,
    event: Events = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Send nothing, or send again, what waits first."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change an endpoint, pause it, or resume it."""
    given = {
        "url": url,
        "description": description,
        "eventTypes": _chosen(event) if event else None,
        "paused": pause,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    changed = ask(lambda api: api.patch(f"/webhooks/{webhook_id}", changes), needs_server=False)
    _show(changed, as_json=as_json)


@app.command()
def delete(webhook_id: WebhookId) -> None:
    """Delete an endpoint with its deliveries. What waits isn't sent any more."""
    ask(lambda api: api.delete(f"/webhooks/{webhook_id}"), needs_server=False)
    say(f"deleted webhook {webhook_id}")


@app.command("rotate-secret")
def rotate_secret(
    webhook_id: WebhookId, overlap_hours: OverlapHours = 24, as_json: AsJson = False
) -> None:
    """Replace the secret of an endpoint, and print the new one."""
    body = {"overlapMs": int(overlap_hours * HOUR_MS)}

    async def rotated(api: Api) -> Json:
        return await api.post(f"/webhooks/{webhook_id}/rotate-secret", body)

    show_secret(ask(rotated, needs_server=False), overlap_hours, as_json=as_json)


@app.command()
def deliveries(
    webhook: Annotated[int | None, typer.Option(min=1, help="Of an endpoint.")] = None,
    bot: Annotated[int | None, typer.Option(min=1, help="Of a bot.")] = None,
    project: Project = None,
    event: Annotated[EventType | None, typer.Option(help="Of a type of events.")] = None,
    status: Annotated[DeliveryStatus | None, typer.Option(help="With a status.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Show what was or is to be delivered, newest first."""

    async def found(api: Api) -> Json:
        return await api.pages(
            "/webhooks/deliveries",
            "deliveries",
            limit,
            cursor,
            webhookId=webhook,
            botId=bot,
            projectId=await _id_of(api, project),
            type=event,
            status=status,
        )

    page = ask(found, needs_server=False)
    if as_json:
        print_json(page)
        return
    print_table(_DELIVERIES, map(_delivery_row, page["deliveries"]), "no delivery")
    tell_of_more(page)


@app.command()
def delivery(delivery_id: DeliveryId, as_json: AsJson = False) -> None:
    """Show one delivery, with every attempt to make it. With --json also its body."""
    found = ask(lambda api: api.get(f"/webhooks/deliveries/{delivery_id}"), needs_server=False)
    if as_json:
        print_json(found)
        return
    each = found["delivery"]
    print_facts(
        (
            ("delivery", str(each["id"])),
            ("status", status_cell(each["status"])),
            ("type", each["type"]),
            ("bot", str(each["botId"])),
            ("url", each["url"]),
            ("webhook", str(each["webhookId"] or "callback")),
            ("message", each["messageId"]),
            ("created", moment(each["createdAt"])),
        )
    )
    if found["attempts"]:
        say()
        columns = (Column("try", right=True), Column("at"), Column("took", right=True))
        rows = (
            (
                str(attempt["number"]),
                moment(attempt["at"]) or "",
                f"{attempt['tookMs']} ms",
                str(attempt["status"] or attempt["error"]),
            )
            for attempt in found["attempts"]
        )
        print_table((*columns, Column("answer", folds=True)), rows, "")


@app.command()
def resend(
    delivery_id: Annotated[
        int | None,
        typer.Argument(metavar="DELIVERY", min=1, help="The id of one delivery."),
    ] = None,
    since_hours: Annotated[
        float | None, typer.Option(min=0, max=24 * 365, help="All of the last so many hours.")
    ] = None,
    webhook: Annotated[int | None, typer.Option(min=1, help="Of an endpoint.")] = None,
    project: Project = None,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="Those that were delivered, not those given up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send one delivery again, or all that were given up since a time."""
    if (delivery_id is None) == (since_hours is None):
        raise typer.BadParameter("Give the id of a delivery, or --since-hours.")

    async def resent(api: Api) -> Json:
        if delivery_id is not None:
            await api.post(f"/webhooks/deliveries/{delivery_id}/resend")
            return {"resent": 1}
        since = datetime.now(UTC) - timedelta(hours=since_hours or 0)
        given = {
            "since": since.isoformat(),
            "webhookId": webhook,
            "projectId": await _id_of(api, project),
            "status": DeliveryStatus.DELIVERED if delivered else DeliveryStatus.GIVEN_UP,
        }
        body = {name: value for name, value in given.items() if value is not None}
        return await api.post("/webhooks/deliveries/resend", body)

    found = ask(resent, needs_server=False)
    if as_json:
        print_json(found)
    else:
        say(f"resent {found['resent']}")


async def _id_of(api: Api, project: str | None) -> int | None:
    return None if project is None else await project_id_of(api, project)


def _chosen(events: Sequence[EventType] | None) -> Sequence[EventType]:
    """The types of events that were chosen, or all."""
    for event in events or ():
        if event not in ENDPOINT_EVENTS:
            raise typer.BadParameter(f"--event must be one of {', '.join(ENDPOINT_EVENTS)}.")
    return events or ENDPOINT_EVENTS


def _show(endpoint: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(endpoint)
    else:
        _print([endpoint])


def _print(endpoints: Sequence[Json]) -> None:
    print_table(_ENDPOINTS, map(_row, endpoints), "no endpoint")


def _row(endpoint: Json) -> Row:
    return (
        str(endpoint["id"]),
        str(endpoint["projectId"]),
        endpoint["url"],
        ", ".join(endpoint["eventTypes"]),
        _state(endpoint),
    )


def _state(endpoint: Json) -> str:
    if endpoint["pausedAt"] is not None:
        return f"paused for {age(endpoint['pausedAt'])}: {endpoint['pauseReason']}"
    if endpoint["failingSince"] is not None:
        return f"fails for {age(endpoint['failingSince'])}"
    return "ok"


def _delivery_row(each: Json) -> Row:
    return (
        str(each["id"]),
        str(each["webhookId"] or "callback"),
        str(each["botId"]),
        str(each["attempts"]),
        each["type"],
        status_cell(each["status"]),
        age(each["createdAt"]),
        str(each["lastError"] or each["lastStatus"] or ""),
    )
