"""Webhooks: deliveries, and attempts to deliver them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.json import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """A message for a bot's callback URL. Open until it is delivered or given up."""

    id: int
    bot_id: int
    payload: Json
    created_at: datetime
    attempts: int
    delivered_at: datetime | None
    given_up_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWebhook:
    """A delivery that a replica has reserved to post, and the database's time when it did.

    `message_id` is the same in every attempt. The URL may contain a secret of the receiver.
    """

    id: int
    bot_id: int
    message_id: str
    host: str
    callback_url: str = field(repr=False)
    payload: Json = field(repr=False)
    attempts: int
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAttempt:
    """One attempt to deliver: the status of the answer, or why there was no answer."""

    delivery_id: int
    number: int
    at: datetime
    status: int | None
    error: str | None
    took_ms: int
