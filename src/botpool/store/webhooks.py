"""The queries that webhooks are delivered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.deliveries import DueWebhook, WebhookAttempt, WebhookDelivery
from botpool.store.base import Queries
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence


class WebhookQueries(Queries):
    """The queries of sql/webhooks.sql. `replica` is who asks."""

    async def claim_deliveries(
        self, replica: str, ttl_ms: float, most: int, under_way: Sequence[str], most_of_a_host: int
    ) -> list[DueWebhook]:
        """Take at most so many deliveries that are due, and no more of a host than it may have.

        `under_way` is the host of each delivery that the replica has already.
        """
        rows = await self._database.fetch(
            QUERIES["claim_deliveries"], replica, ttl_ms, most, under_way, most_of_a_host
        )
        return [DueWebhook(**row) for row in rows]

    async def return_delivery(self, delivery_id: int, replica: str) -> None:
        """Let go of a delivery: it is due as it was."""
        await self._database.execute(QUERIES["return_delivery"], delivery_id, replica)

    async def record_attempt(
        self,
        delivery_id: int,
        replica: str,
        attempt: WebhookAttempt,
        *,
        delivered: bool,
        retry_in_ms: float | None,
    ) -> bool:
        """Record an attempt, and return whether the delivery was still the replica's.

        What was not delivered is tried again in so long, or given up.
        """
        row = await self._database.fetch_one(
            QUERIES["record_attempt"],
            *(delivery_id, replica, attempt.at, attempt.status, attempt.error, attempt.took_ms),
            *(delivered, retry_in_ms),
        )
        return row is not None and row["recorded"] is True

    async def list_deliveries(self, bot_id: int) -> list[WebhookDelivery]:
        """What a bot's callback address is or was to be told, in order."""
        rows = await self._database.fetch(QUERIES["list_deliveries"], bot_id)
        return [WebhookDelivery(**row) for row in rows]

    async def list_attempts(self, bot_id: int) -> list[WebhookAttempt]:
        """Every attempt to tell a bot's callback address something, in order."""
        rows = await self._database.fetch(QUERIES["list_attempts"], bot_id)
        return [WebhookAttempt(**row) for row in rows]

    async def get_webhook_secret(self) -> str:
        """What webhooks are signed with, unless the settings say otherwise."""
        (row,) = await self._database.fetch(QUERIES["get_webhook_secret"])
        secret: str = row["webhook_secret"]
        return secret
