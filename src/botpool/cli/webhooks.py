"""`botpool webhooks`: the endpoints of projects, and what was delivered."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.cli.start import start
from botpool.feed.endpoints import OVERLAP, Endpoints
from botpool.models.events import EventType
from botpool.models.projects import DEFAULT_PROJECT
from botpool.models.webhooks import ENDPOINT_EVENTS, DeliveryPage, DeliveryStatus
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import TypeVar

    from botpool.models.webhooks import Endpoint, WebhookDelivery

    Result = TypeVar("Result")

app = typer.Typer(
    name="webhooks",
    help="Create, show, change and delete webhook endpoints; show and resend deliveries.",
    no_args_is_help=True,
)

_LARGEST = 2**63 - 1
WebhookId = Annotated[
    int,
    typer.Argument(
        metavar="ID", min=1, max=_LARGEST, help="The id, as `botpool webhooks list` shows it."
    ),
]
Project = Annotated[str | None, typer.Option(help="The name of the project.")]
Events = Annotated[
    list[EventType] | None,
    typer.Option(
        "--event",
        help=f"A type of events to post; may be given twice. {', '.join(ENDPOINT_EVENTS)}.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_command(project: Project = None, as_json: AsJson = False) -> None:
    """Show every endpoint, or those of a project, and whether they fail or are paused."""

    async def found(store: Store, _: Endpoints) -> list[Endpoint]:
        return await store.webhooks.endpoints(await _id_of(store, project))

    _show_endpoints(_run(found), as_json=as_json)


@app.command()
def create(
    url: Annotated[str, typer.Argument(help="Where events are posted to.")],
    project: Project = None,
    event: Events = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Create an endpoint, and print the secret that signs what it gets. It is shown once."""

    async def made(store: Store, endpoints: Endpoints) -> tuple[Endpoint, str]:
        project_id = await _id_of(store, project) or DEFAULT_PROJECT
        return await endpoints.create(
            project_id, url, event_types=_chosen(event), description=description
        )

    endpoint, secret = _run(made)
    typer.echo(secret)
    hint = f"This is the secret of webhook {endpoint.id}. Keep it: it can't be shown again."
    typer.echo(hint, err=True)


@app.command()
def show(webhook_id: WebhookId, as_json: AsJson = False) -> None:
    """Show one endpoint."""
    endpoint = _run(lambda store, _: store.webhooks.endpoint(webhook_id))
    _show_endpoints([endpoint], as_json=as_json)


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
) -> None:
    """Change an endpoint, pause it, or resume it."""
    changes: dict[str, object] = {"url": url, "description": description}
    if event:
        changes["event_types"] = _chosen(event)
    given = {name: value for name, value in changes.items() if value is not None}
    changed = _run(lambda _, endpoints: endpoints.change(webhook_id, given, paused=pause))
    _show_endpoints([changed], as_json=False)


@app.command()
def delete(webhook_id: WebhookId) -> None:
    """Delete an endpoint with its deliveries. What waits isn't sent any more."""
    _run(lambda _, endpoints: endpoints.delete(webhook_id))
    typer.echo(f"deleted webhook {webhook_id}")


@app.command("rotate-secret")
def rotate_secret(
    webhook_id: WebhookId,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=720, help="How long the old secret signs beside the new.")
    ] = OVERLAP / timedelta(hours=1),
) -> None:
    """Replace the secret of an endpoint, and print the new one."""
    overlap = timedelta(hours=overlap_hours)
    typer.echo(_run(lambda _, endpoints: endpoints.rotate_secret(webhook_id, overlap)))
    typer.echo(
        f"The old secret signs, too, for another {overlap_hours:g} hours. Keep the new one: it"
        " can't be shown again.",
        err=True,
    )


@app.command()
def deliveries(
    webhook: Annotated[
        int | None, typer.Option(min=1, max=_LARGEST, help="Of an endpoint.")
    ] = None,
    bot: Annotated[int | None, typer.Option(min=1, max=_LARGEST, help="Of a bot.")] = None,
    project: Project = None,
    status: Annotated[DeliveryStatus | None, typer.Option(help="With a status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what was or is to be delivered, newest first."""

    async def found(store: Store, _: Endpoints) -> list[WebhookDelivery]:
        return await store.webhooks.page(
            DeliveryPage(
                limit=limit,
                project_id=await _id_of(store, project),
                endpoint_id=webhook,
                bot_id=bot,
                status=status,
            )
        )

    _show_deliveries(_run(found), as_json=as_json)


@app.command()
def resend(
    delivery_id: Annotated[
        int | None,
        typer.Argument(metavar="[DELIVERY]", min=1, max=_LARGEST, help="The id of one delivery."),
    ] = None,
    since_hours: Annotated[
        float | None, typer.Option(min=0, max=24 * 365, help="All of the last so many hours.")
    ] = None,
    webhook: Annotated[
        int | None, typer.Option(min=1, max=_LARGEST, help="Of an endpoint.")
    ] = None,
    project: Project = None,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="Those that were delivered, not those given up.")
    ] = False,
) -> None:
    """Send one delivery again, or all that were given up since a time."""
    if (delivery_id is None) == (since_hours is None):
        raise typer.BadParameter("Give the id of a delivery, or --since-hours.")

    async def resent(store: Store, endpoints: Endpoints) -> int:
        if delivery_id is not None:
            await endpoints.resend(delivery_id)
            return 1
        page = DeliveryPage(
            project_id=await _id_of(store, project),
            endpoint_id=webhook,
            status=DeliveryStatus.DELIVERED if delivered else DeliveryStatus.GIVEN_UP,
            since=await store.installation.now() - timedelta(hours=since_hours or 0),
        )
        return await endpoints.resend_many(page)

    typer.echo(f"resent {_run(resent)}")


def _run(work: Callable[[Store, Endpoints], Awaitable[Result]]) -> Result:
    async def worked() -> Result:
        async with _opened() as (store, endpoints):
            return await work(store, endpoints)

    return asyncio.run(worked())


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Store, Endpoints]]:
    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        yield store, Endpoints(store, settings)


async def _id_of(store: Store, project: str | None) -> int | None:
    return None if project is None else await store.projects.id_of(project)


def _chosen(events: Sequence[EventType] | None) -> Sequence[EventType]:
    """The types of events that were chosen, or all."""
    for event in events or ():
        if event not in ENDPOINT_EVENTS:
            raise typer.BadParameter(f"--event must be one of {', '.join(ENDPOINT_EVENTS)}.")
    return events or ENDPOINT_EVENTS


def _show_endpoints(endpoints: Sequence[Endpoint], *, as_json: bool) -> None:
    if as_json:
        _print_json([dataclasses.asdict(endpoint) for endpoint in endpoints])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("project", justify="right", no_wrap=True)
    for column in ("url", "events", "state"):
        table.add_column(column, overflow="fold")
    for endpoint in endpoints:
        table.add_row(
            str(endpoint.id),
            str(endpoint.project_id),
            Text(endpoint.url),
            ", ".join(endpoint.event_types),
            Text(_state(endpoint)),
        )
    Console().print(table)


def _state(endpoint: Endpoint) -> str:
    if endpoint.paused_at is not None:
        return f"paused at {endpoint.paused_at:%Y-%m-%d %H:%M}: {endpoint.pause_reason}"
    if endpoint.failing_since is not None:
        return f"fails since {endpoint.failing_since:%Y-%m-%d %H:%M}"
    return "ok"


def _show_deliveries(found: Sequence[WebhookDelivery], *, as_json: bool) -> None:
    if as_json:
        _print_json([{**dataclasses.asdict(each), "status": each.status} for each in found])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("id", "webhook", "bot", "attempts"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("type", "status", "created", "last attempt"):
        table.add_column(column, overflow="fold")
    for each in found:
        table.add_row(
            str(each.id),
            str(each.endpoint_id or "callback"),
            str(each.bot_id),
            str(each.attempts),
            each.type,
            each.status,
            f"{each.created_at:%Y-%m-%d %H:%M:%S}",
            Text(str(each.last_error or each.last_status or "")),
        )
    Console().print(table)


def _print_json(rows: Sequence[object]) -> None:
    typer.echo(json.dumps(rows, indent=2, default=lambda time: time.isoformat()))
