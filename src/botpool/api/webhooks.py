"""Webhooks: the endpoints of projects, and what was delivered to them and to callback URLs."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime, BeforeValidator, Field

from botpool.api.auth import KeyRoute, TheCaller
from botpool.api.dependencies import TheSettings, TheStore
from botpool.api.errors import documented
from botpool.api.paging import Cursor, Limit, page_of, place_of, whole_number
from botpool.api.wire import Asked, Wire
from botpool.errors import (
    CallbackInvalid,
    CallbackPrivate,
    DeliveryNotFound,
    Forbidden,
    InvalidRequest,
    ProjectNotFound,
    TooManyRequests,
    Unauthorized,
    WebhookNotFound,
    WebhookPaused,
)
from botpool.feed.addresses import MOST_CHARACTERS
from botpool.feed.endpoints import OVERLAP, Endpoints
from botpool.models.keys import ApiKey
from botpool.models.projects import DEFAULT_PROJECT
from botpool.models.webhooks import (
    ENDPOINT_EVENTS,
    DeliveryPage,
    DeliveryStatus,
    Endpoint,
    EndpointEvent,
    WebhookAttempt,
    WebhookDelivery,
)
from botpool.store import Store

router = APIRouter(
    prefix="/api/v1/webhooks",
    tags=["webhooks"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, InvalidRequest, TooManyRequests),
)

_LARGEST = 2**63 - 1
_Id = Annotated[int, Field(strict=True, ge=1, le=_LARGEST)]
WebhookId = Annotated[int, Path(alias="webhookId", ge=1, le=_LARGEST)]
DeliveryId = Annotated[int, Path(alias="deliveryId", ge=1, le=_LARGEST)]

_Url = Annotated[str, Field(max_length=MOST_CHARACTERS, description="Where events are posted to.")]
_Description = Annotated[str, Field(max_length=200)]
_EventTypes = Annotated[
    list[EndpointEvent],
    Field(min_length=1, max_length=10, description="The types of events to post."),
]


def _is_text(value: Any) -> Any:
    """Refuse a number: which time it would be is a guess."""
    if not isinstance(value, str):
        raise ValueError("must be a time such as 2026-01-01T00:00:00Z")  # noqa: TRY004
    return value


_Time = Annotated[AwareDatetime, BeforeValidator(_is_text)]


class CreateWebhook(Asked):
    """An endpoint to be made."""

    url: _Url
    event_types: _EventTypes = Field(default_factory=lambda: [*ENDPOINT_EVENTS])
    description: _Description = ""
    project_id: _Id | None = Field(
        default=None,
        description="The project. By default the key's own; an admin's key, which has none, may"
        " name any, and means the default project.",
    )


class ChangeWebhook(Asked):
    """What to change. What is left out stays as it is."""

    url: _Url | None = None
    event_types: _EventTypes | None = None
    description: _Description | None = None
    paused: bool | None = Field(
        default=None,
        strict=True,
        description="`false` resumes it: what has waited is sent first. `true` pauses it.",
    )


class RotateSecret(Asked):
    """How a secret is replaced."""

    overlap_ms: Annotated[int, Field(strict=True, ge=0, le=30 * 24 * 3_600_000)] = Field(
        default=OVERLAP // timedelta(milliseconds=1),
        description="How long messages are signed with the old secret, too. By default a day.",
    )


class ResendDeliveries(Asked):
    """Which deliveries to send again: those since a time that fit the rest."""

    since: _Time = Field(description="Those that were written at this time or later.")
    webhook_id: _Id | None = None
    bot_id: _Id | None = None
    project_id: _Id | None = None
    status: Literal[DeliveryStatus.GIVEN_UP, DeliveryStatus.DELIVERED] = Field(
        default=DeliveryStatus.GIVEN_UP, description="Those that were given up, or delivered."
    )


class WebhookOut(Wire):
    """An endpoint: where a project wants its events posted to."""

    id: int
    project_id: int
    url: str
    event_types: list[str]
    description: str
    created_at: datetime
    failing_since: datetime | None = Field(
        description="Since when nothing was delivered, if the last attempt failed."
    )
    paused_at: datetime | None = Field(description="Nothing is sent while it is paused.")
    pause_reason: str | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """An endpoint as it goes over the wire."""
        return cls(**{name: getattr(endpoint, name) for name in WebhookOut.model_fields})


class NewWebhookOut(Wire):
    """A new endpoint, and the secret that signs what it gets. It can't be shown again."""

    webhook: WebhookOut
    secret: str


class NewSecretOut(Wire):
    """A new secret: `whsec_…`, as Standard Webhooks defines it. It can't be shown again."""

    secret: str


class WebhookList(Wire):
    """Endpoints, the oldest first."""

    webhooks: list[WebhookOut]


class DeliveryOut(Wire):
    """A message to an endpoint, or without one to a bot's callback URL."""

    id: int
    message_id: str = Field(description="The header `webhook-id` of every attempt.")
    project_id: int
    webhook_id: int | None
    bot_id: int
    url: str
    type: str
    status: DeliveryStatus
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None = Field(
        description="Null if it is closed, or waits for an earlier one or for a paused endpoint."
    )
    delivered_at: datetime | None
    given_up_at: datetime | None
    resent_at: datetime | None
    last_status: int | None = Field(description="The status of the last answer.")
    last_error: str | None = Field(description="Why there was no answer to the last attempt.")

    @classmethod
    def of(cls, delivery: WebhookDelivery) -> Self:
        """A delivery as it goes over the wire."""
        own = DeliveryOut.model_fields.keys() - {"webhook_id"}
        return cls(
            **{name: getattr(delivery, name) for name in own}, webhook_id=delivery.endpoint_id
        )


class DeliveryList(Wire):
    """One page of deliveries, newest first. The last page has no `nextCursor`."""

    deliveries: list[DeliveryOut]
    next_cursor: str | None = None


class AttemptOut(Wire):
    """One attempt to deliver: the status of the answer, or why there was none."""

    number: int
    at: datetime
    status: int | None
    error: str | None
    took_ms: int

    @classmethod
    def of(cls, attempt: WebhookAttempt) -> Self:
        """An attempt as it goes over the wire."""
        return cls(**{name: getattr(attempt, name) for name in cls.model_fields})


class DeliveryDetails(Wire):
    """A delivery, its body, and every attempt to make it."""

    delivery: DeliveryOut
    payload: dict[str, Any]
    attempts: list[AttemptOut]


class Resent(Wire):
    """How many deliveries are sent again."""

    resent: int


# Deliveries. An id is a number in these paths, so that no name stands at the place of another.


@router.get("/deliveries")
async def list_deliveries(
    caller: TheCaller,
    store: TheStore,
    webhook_id: Annotated[int | None, Query(alias="webhookId", ge=1, le=_LARGEST)] = None,
    bot_id: Annotated[int | None, Query(alias="botId", ge=1, le=_LARGEST)] = None,
    project_id: Annotated[int | None, Query(alias="projectId", ge=1, le=_LARGEST)] = None,
    type_: Annotated[EndpointEvent | None, Query(alias="type")] = None,
    status: DeliveryStatus | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> DeliveryList:
    """List what was or is to be delivered, to endpoints and to callback URLs, newest first."""
    if not caller.may_see(project_id):
        return DeliveryList(deliveries=[])
    (before,) = (_LARGEST,) if cursor is None else place_of(cursor, whole_number)
    found = await store.webhooks.page(
        DeliveryPage(
            before=before,
            limit=limit + 1,
            project_id=caller.project_id or project_id,
            endpoint_id=webhook_id,
            bot_id=bot_id,
            type=type_,
            status=status,
        )
    )
    page, next_cursor = page_of(found, limit, lambda delivery: (delivery.id,))
    return DeliveryList(deliveries=[DeliveryOut.of(each) for each in page], next_cursor=next_cursor)


@router.post("/deliveries/resend", status_code=202)
async def resend_deliveries(
    request: ResendDeliveries, caller: TheCaller, store: TheStore, settings: TheSettings
) -> Resent:
    """Send deliveries since a time again: at most 10,000, the newest. Ask again for more.

    Those that go to a paused endpoint stay as they are.
    """
    if not caller.may_see(request.project_id):
        return Resent(resent=0)
    page = DeliveryPage(
        project_id=caller.project_id or request.project_id,
        endpoint_id=request.webhook_id,
        bot_id=request.bot_id,
        status=request.status,
        since=request.since,
    )
    return Resent(resent=await Endpoints(store, settings).resend_many(page))


@router.get("/deliveries/{deliveryId:int}", responses=documented(DeliveryNotFound))
async def get_delivery(
    delivery_id: DeliveryId, caller: TheCaller, store: TheStore
) -> DeliveryDetails:
    """Get one delivery: its body, and every attempt to make it."""
    delivery = await _visible_delivery(store, caller, delivery_id)
    return DeliveryDetails(
        delivery=DeliveryOut.of(delivery),
        payload=delivery.payload,
        attempts=[AttemptOut.of(each) for each in await store.webhooks.attempts(delivery_id)],
    )


@router.post(
    "/deliveries/{deliveryId:int}/resend",
    status_code=202,
    responses=documented(DeliveryNotFound, WebhookPaused),
)
async def resend_delivery(
    delivery_id: DeliveryId, caller: TheCaller, store: TheStore, settings: TheSettings
) -> DeliveryOut:
    """Send a delivery again, with the same `webhook-id`. One that is open stays as it is."""
    await _visible_delivery(store, caller, delivery_id)
    return DeliveryOut.of(await Endpoints(store, settings).resend(delivery_id))


# Endpoints


@router.get("")
async def list_webhooks(
    caller: TheCaller,
    store: TheStore,
    project_id: Annotated[int | None, Query(alias="projectId", ge=1, le=_LARGEST)] = None,
) -> WebhookList:
    """List every endpoint. A client's key sees those of its project."""
    if not caller.may_see(project_id):
        return WebhookList(webhooks=[])
    found = await store.webhooks.endpoints(caller.project_id or project_id)
    return WebhookList(webhooks=[WebhookOut.of(endpoint) for endpoint in found])


@router.post(
    "",
    status_code=201,
    responses=documented(InvalidRequest, CallbackInvalid, CallbackPrivate, ProjectNotFound),
)
async def create_webhook(
    request: CreateWebhook,
    response: Response,
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
) -> NewWebhookOut:
    """Have a project's events posted to a URL. The answer has the secret that signs them."""
    if not caller.may_see(request.project_id):
        raise ProjectNotFound(f"There is no project {request.project_id}.")
    response.headers["Cache-Control"] = "no-store"
    made, secret = await Endpoints(store, settings).create(
        request.project_id or caller.project_id or DEFAULT_PROJECT,
        request.url,
        event_types=request.event_types,
        description=request.description,
    )
    return NewWebhookOut(webhook=WebhookOut.of(made), secret=secret)


@router.get("/{webhookId:int}", responses=documented(WebhookNotFound))
async def get_webhook(webhook_id: WebhookId, caller: TheCaller, store: TheStore) -> WebhookOut:
    """Get one endpoint: whether deliveries fail, and whether it is paused."""
    return WebhookOut.of(await _visible(store, caller, webhook_id))


@router.patch(
    "/{webhookId:int}",
    responses=documented(InvalidRequest, CallbackInvalid, CallbackPrivate, WebhookNotFound),
)
async def change_webhook(
    webhook_id: WebhookId,
    request: ChangeWebhook,
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
) -> WebhookOut:
    """Change an endpoint, pause it, or resume it. What waits goes to the new URL."""
    await _visible(store, caller, webhook_id)
    changes = request.model_dump(exclude={"paused"}, exclude_none=True)
    changed = await Endpoints(store, settings).change(webhook_id, changes, paused=request.paused)
    return WebhookOut.of(changed)


@router.delete("/{webhookId:int}", status_code=204, responses=documented(WebhookNotFound))
async def delete_webhook(
    webhook_id: WebhookId, caller: TheCaller, store: TheStore, settings: TheSettings
) -> None:
    """Delete an endpoint with its deliveries. What waits isn't sent any more."""
    await _visible(store, caller, webhook_id)
    await Endpoints(store, settings).delete(webhook_id)


@router.post(
    "/{webhookId:int}/rotate-secret", status_code=201, responses=documented(WebhookNotFound)
)
async def rotate_webhook_secret(
    webhook_id: WebhookId,
    response: Response,
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
    request: RotateSecret | None = None,
) -> NewSecretOut:
    """Sign what an endpoint gets with a new secret, which is shown once.

    For a while every message has two signatures: one by the old secret, too.
    """
    await _visible(store, caller, webhook_id)
    response.headers["Cache-Control"] = "no-store"
    overlap = timedelta(milliseconds=(request or RotateSecret()).overlap_ms)
    return NewSecretOut(secret=await Endpoints(store, settings).rotate_secret(webhook_id, overlap))


async def _visible(store: Store, caller: ApiKey, endpoint_id: int) -> Endpoint:
    """The endpoint, if the caller may see it. Raises `WebhookNotFound`."""
    endpoint = await store.webhooks.endpoint(endpoint_id)
    if not caller.may_see(endpoint.project_id):
        raise WebhookNotFound(f"There is no webhook {endpoint_id}.")
    return endpoint


async def _visible_delivery(store: Store, caller: ApiKey, delivery_id: int) -> WebhookDelivery:
    """The delivery, if the caller may see it. Raises `DeliveryNotFound`."""
    delivery = await store.webhooks.get(delivery_id)
    if not caller.may_see(delivery.project_id):
        raise DeliveryNotFound(f"There is no delivery {delivery_id}.")
    return delivery
