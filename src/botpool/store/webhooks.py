"""Webhooks in the database: endpoints, their secrets, and deliveries."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING

from botpool.errors import DeliveryNotFound, WebhookNotFound
from botpool.models.webhooks import (
    DeliveryPage,
    DueWebhook,
    Endpoint,
    WebhookAttempt,
    WebhookDelivery,
)
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from botpool.store.postgres.database import Database


class Webhooks:
    """The queries of webhooks.sql. `replica` is the one that asks."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "webhooks")

    async def reserve(
        self, replica: str, ttl_ms: float, most: int, under_way: Sequence[str], most_of_a_host: int
    ) -> list[DueWebhook]:
        """Reserve at most `most` due deliveries, and at most `most_of_a_host` for each host.

        `under_way` has the host of each delivery that the replica is posting already.
        """
        rows = await self._queries.rows("reserve", replica, ttl_ms, most, under_way, most_of_a_host)
        return [DueWebhook(**row) for row in rows]

    async def give_back(self, delivery_id: int, replica: str) -> None:
        """Give up the reservation of a delivery. It is due as before."""
        await self._queries.run("give_back", delivery_id, replica)

    async def record_attempt(
        self,
        attempt: WebhookAttempt,
        replica: str,
        *,
        delivered: bool,
        retry_in_ms: float | None,
        pause_after_ms: int,
    ) -> str:
        """Record an attempt. If it failed, it is made again in `retry_in_ms`, or given up if None.

        An endpoint at which everything failed for `pause_after_ms` is paused. Returns `recorded`,
        `paused` if this paused the endpoint, or `lost` if another replica has the delivery.
        """
        (row,) = await self._queries.rows(
            "record_attempt", attempt, replica, delivered, retry_in_ms, pause_after_ms
        )
        outcome: str = row["outcome"]
        return outcome

    # Deliveries

    async def page(self, page: DeliveryPage) -> list[WebhookDelivery]:
        """One page of deliveries, newest first."""
        return [_delivery(row) for row in await self._queries.rows("page", page)]

    async def deliveries(self, bot_id: int) -> list[WebhookDelivery]:
        """All deliveries that tell of a bot, in order."""
        return (await self.page(DeliveryPage(bot_id=bot_id, limit=1_000_000)))[::-1]

    async def get(self, delivery_id: int) -> WebhookDelivery:
        """One delivery. Raises `DeliveryNotFound`."""
        row = await self._queries.row("get", delivery_id)
        if row is None:
            raise DeliveryNotFound(f"There is no delivery {delivery_id}.")
        return _delivery(row)

    async def attempts(self, delivery_id: int) -> list[WebhookAttempt]:
        """Every attempt to make a delivery, in order."""
        return [WebhookAttempt(**row) for row in await self._queries.rows("attempts", delivery_id)]

    async def resend(self, delivery_id: int) -> bool:
        """Send a closed delivery again. False if it is open, or its endpoint paused."""
        return await self._queries.run("resend", delivery_id) > 0

    async def resend_many(self, page: DeliveryPage) -> int:
        """Send the closed ones among these again, and return how many they are."""
        return await self._queries.run("resend_many", page)

    # Endpoints

    async def endpoints(self, project_id: int | None = None) -> list[Endpoint]:
        """Every endpoint, or those of a project, the oldest first."""
        return [Endpoint(**row) for row in await self._queries.rows("endpoints", project_id)]

    async def endpoint(self, endpoint_id: int) -> Endpoint:
        """One endpoint. Raises `WebhookNotFound`."""
        row = await self._queries.row("endpoint", endpoint_id)
        if row is None:
            raise WebhookNotFound(f"There is no webhook {endpoint_id}.")
        return Endpoint(**row)

    async def add_endpoint(
        self, values: Mapping[str, object], secret: str, most: int
    ) -> Endpoint | None:
        """Add an endpoint. None if its project has as many as it may have."""
        row = await self._queries.row("add_endpoint", values, secret, most)
        return None if row is None else Endpoint(**row)

    async def change_endpoint(self, endpoint_id: int, changes: Mapping[str, object]) -> None:
        """Change the address, description or event types of an endpoint."""
        await self._queries.run("change_endpoint", endpoint_id, changes)

    async def pause_endpoint(self, endpoint_id: int, reason: str) -> None:
        """Send nothing to an endpoint until it is resumed. What waits is kept."""
        await self._queries.run("pause_endpoint", endpoint_id, reason)

    async def resume_endpoint(self, endpoint_id: int) -> None:
        """Send to an endpoint again, what has waited first."""
        await self._queries.run("resume_endpoint", endpoint_id)

    async def delete_endpoint(self, endpoint_id: int) -> bool:
        """Delete an endpoint with its deliveries. False if there is none."""
        return await self._queries.run("delete_endpoint", endpoint_id) > 0

    # Secrets

    async def rotate_endpoint_secret(self, endpoint_id: int, secret: str, overlap_ms: int) -> None:
        """Sign an endpoint's deliveries with another secret, for a while with the old one, too."""
        await self._queries.run("rotate_endpoint_secret", endpoint_id, secret, overlap_ms)

    async def rotate_project_secret(
        self, project_id: int, secret: str, overlap_ms: int, had: str | None
    ) -> None:
        """Sign the callbacks of a project with another secret, for a while with the old one, too.

        `had` is the old one if the project has none of its own.
        """
        await self._queries.run("rotate_project_secret", project_id, secret, overlap_ms, had)

    async def installation_secret(self) -> str:
        """The secret of projects that have none of their own, unless the settings give another."""
        (row,) = await self._queries.rows("installation_secret")
        secret: str = row["webhook_secret"]
        return secret


def _delivery(row: asyncpg.Record) -> WebhookDelivery:
    values = {each.name: row[each.name] for each in fields(WebhookDelivery)}
    due = row["next_attempt_at"]
    # asyncpg reads 'infinity' as the last time that there is: it waits for something else.
    values["next_attempt_at"] = None if due is None or due.year == datetime.max.year else due
    values["url"] = row["posted_to"]
    return WebhookDelivery(**values)
