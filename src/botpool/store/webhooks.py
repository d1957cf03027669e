"""Webhook deliveries in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.webhooks import DueWebhook, WebhookAttempt, WebhookDelivery
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    ) -> bool:
        """Record an attempt, and return whether the replica still had the delivery.

        If it was not delivered, it is tried again in `retry_in_ms`, or given up if that is None.
        """
        row = await self._queries.row("record_attempt", attempt, replica, delivered, retry_in_ms)
        return row is not None and row["recorded"] is True

    async def deliveries(self, bot_id: int) -> list[WebhookDelivery]:
        """The deliveries to a bot's callback URL, in order."""
        return [WebhookDelivery(**row) for row in await self._queries.rows("deliveries", bot_id)]

    async def attempts(self, bot_id: int) -> list[WebhookAttempt]:
        """Every attempt to deliver to a bot's callback URL, in order."""
        return [WebhookAttempt(**row) for row in await self._queries.rows("attempts", bot_id)]

    async def secret(self) -> str:
        """The secret that signs webhooks, unless the settings give another."""
        (row,) = await self._queries.rows("secret")
        secret: str = row["webhook_secret"]
        return secret
