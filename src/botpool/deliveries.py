"""What webhooks speak of, as it was in the database when it was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """What a bot's callback address is, or was, to be told. Open until delivered or given up."""

    id: int
    bot_id: int
    payload: Json
    created_at: datetime
    attempts: int
    delivered_at: datetime | None
    given_up_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWebhook:
    """A delivery that was taken to be posted, and the database's time when it was.

    `message_id` is the same with every attempt. The address may hold a secret of the receiver's.
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
    """One attempt to deliver: the status that it was answered with, or why there was none."""

    delivery_id: int
    number: int
    at: datetime
    status: int | None
    error: str | None
    took_ms: int
