"""Webhooks: endpoints, deliveries to them and to callback URLs, and attempts to deliver."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from botpool.models.events import EventType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models.json import Json

_SECRET_BYTES = 32

EndpointEvent = Literal[EventType.BOT_STATUS_CHANGED, EventType.BOT_EVENT]
"""The types of events that an endpoint can choose."""

ENDPOINT_EVENTS: tuple[EndpointEvent, ...] = (EventType.BOT_STATUS_CHANGED, EventType.BOT_EVENT)


def new_secret() -> str:
    """A new random secret, in the form that Standard Webhooks defines."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a project wants its events of some types posted to.

    Nothing is sent while it is paused. The URL may contain a secret of the receiver.
    """

    id: int
    project_id: int
    url: str = field(repr=False)
    description: str
    event_types: Sequence[str]
    created_at: datetime
    failing_since: datetime | None
    paused_at: datetime | None
    pause_reason: str | None


class DeliveryStatus(StrEnum):
    """Whether a delivery is still to be made."""

    OPEN = "open"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """A message for an endpoint or, without one, for a bot's callback URL.

    Open until it is delivered or given up. It has no `next_attempt_at` while it waits for another
    delivery, or for its endpoint to be resumed.
    """

    id: int
    message_id: str
    project_id: int
    bot_id: int
    endpoint_id: int | None
    url: str = field(repr=False)
    type: str
    payload: Json = field(repr=False)
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None
    resent_at: datetime | None
    last_status: int | None
    last_error: str | None

    @property
    def status(self) -> DeliveryStatus:
        """Whether it is still to be made."""
        if self.delivered_at is not None:
            return DeliveryStatus.DELIVERED
        return DeliveryStatus.OPEN if self.given_up_at is None else DeliveryStatus.GIVEN_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPage:
    """Which deliveries to list: ids below `before`, newest first, filtered by the other fields."""

    before: int = 2**63 - 1
    limit: int = 50
    project_id: int | None = None
    endpoint_id: int | None = None
    bot_id: int | None = None
    type: str | None = None
    status: DeliveryStatus | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWebhook:
    """A delivery that a replica has reserved to post, and the database's time when it did.

    `message_id` is the same in every attempt; `tries` were made since it was written or resent.
    Each of `secrets` signs it; without one, the installation's does. The URL may contain a secret
    of the receiver.
    """

    id: int
    bot_id: int
    correlation_id: str
    endpoint_id: int | None
    message_id: str
    host: str
    url: str = field(repr=False)
    payload: Json = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    tries: int
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
