"""Webhook endpoints of projects, and the secrets that sign what is sent to them.

A secret is shown once. It is kept as it is, because signatures are made with it: whoever reads the
database can sign as botpool, until the secret is rotated; no key and no call can be had from it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.errors import (
    ConstraintViolated,
    InvalidRequest,
    ProjectNotFound,
    WebhookNotFound,
    WebhookPaused,
)
from botpool.feed.addresses import check_callback
from botpool.models.webhooks import ENDPOINT_EVENTS, DeliveryStatus, new_secret
from botpool.store.installation import WEBHOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from botpool.models.webhooks import DeliveryPage, Endpoint, WebhookDelivery
    from botpool.settings import Settings
    from botpool.store import Store

OVERLAP = timedelta(days=1)
"""How long a secret that is rotated is valid beside the new one, unless told otherwise."""

MOST_ENDPOINTS = 20
"""How many endpoints a project may have."""

MOST_RESENT = 10_000
"""How many deliveries are sent again at a time."""

_ON_REQUEST = "paused on request"


class Endpoints:
    """Makes, changes and deletes endpoints, rotates secrets, and sends deliveries again."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    async def create(
        self,
        project_id: int,
        url: str,
        *,
        event_types: Sequence[str] = ENDPOINT_EVENTS,
        description: str = "",
    ) -> tuple[Endpoint, str]:
        """A new endpoint, and its secret, which can't be shown again.

        Raises `InvalidRequest` for a URL that botpool may not post to, or if the project has
        `MOST_ENDPOINTS`, and `ProjectNotFound`.
        """
        self._check(url)
        secret = new_secret()
        values = {
            "project_id": project_id,
            "url": url,
            "description": description,
            "event_types": sorted(set(event_types)),
        }
        try:
            made = await self._store.webhooks.add_endpoint(values, secret, MOST_ENDPOINTS)
        except ConstraintViolated as error:
            raise ProjectNotFound(f"There is no project {project_id}.") from error
        if made is None:
            raise InvalidRequest(f"A project may have {MOST_ENDPOINTS} webhooks, and has them.")
        return made, secret

    async def change(
        self, endpoint_id: int, changes: Mapping[str, object], *, paused: bool | None = None
    ) -> Endpoint:
        """Change the `url`, `description` or `event_types` of an endpoint; pause or resume it.

        What waits goes to the new URL. Raises `WebhookNotFound`, and `InvalidRequest` for a URL
        that botpool may not post to.
        """
        await self._store.webhooks.endpoint(endpoint_id)
        if "url" in changes:
            self._check(str(changes["url"]))
        if changes:
            await self._store.webhooks.change_endpoint(endpoint_id, changes)
        if paused is True:
            await self._store.webhooks.pause_endpoint(endpoint_id, _ON_REQUEST)
        elif paused is False:
            await self._store.webhooks.resume_endpoint(endpoint_id)
            await self._wake()
        return await self._store.webhooks.endpoint(endpoint_id)

    async def delete(self, endpoint_id: int) -> None:
        """Delete an endpoint. What waits for it is deleted, too. Raises `WebhookNotFound`."""
        if not await self._store.webhooks.delete_endpoint(endpoint_id):
            raise WebhookNotFound(f"There is no webhook {endpoint_id}.")

    async def rotate_secret(self, endpoint_id: int, overlap: timedelta = OVERLAP) -> str:
        """A new secret of an endpoint. For the overlap, deliveries are signed with both.

        Raises `WebhookNotFound`.
        """
        await self._store.webhooks.endpoint(endpoint_id)
        secret = new_secret()
        await self._store.webhooks.rotate_endpoint_secret(
            endpoint_id, secret, _milliseconds(overlap)
        )
        return secret

    async def rotate_project_secret(self, project_id: int, overlap: timedelta = OVERLAP) -> str:
        """A new secret of a project, which signs what is sent to its bots' callback URLs.

        For the overlap, deliveries are signed with both. Raises `ProjectNotFound`.
        """
        await self._store.projects.get(project_id)
        secret = new_secret()
        await self._store.webhooks.rotate_project_secret(
            project_id,
            secret,
            _milliseconds(overlap),
            await installation_secret(self._store, self._settings),
        )
        return secret

    async def resend(self, delivery_id: int) -> WebhookDelivery:
        """Send a delivery again that was made or given up. One that is open stays as it is.

        Raises `DeliveryNotFound`, and `WebhookPaused` if its endpoint is paused.
        """
        if not await self._store.webhooks.resend(delivery_id):
            delivery = await self._store.webhooks.get(delivery_id)
            if delivery.status is not DeliveryStatus.OPEN:
                raise WebhookPaused(f"Webhook {delivery.endpoint_id} is paused: resume it first.")
            return delivery
        await self._wake()
        return await self._store.webhooks.get(delivery_id)

    async def resend_many(self, page: DeliveryPage) -> int:
        """Send the closed ones of these again, the newest `MOST_RESENT` of them; how many they are.

        Those to an endpoint that is paused stay as they are.
        """
        sent = await self._store.webhooks.resend_many(replace(page, limit=MOST_RESENT))
        await self._wake()
        return sent

    def _check(self, url: str) -> None:
        try:
            check_callback(url, allow_private=self._settings.allow_private_callbacks)
        except InvalidRequest as error:
            error.field = "url"
            raise

    async def _wake(self) -> None:
        await self._store.installation.announce([WEBHOOKS])


async def installation_secret(store: Store, settings: Settings) -> str:
    """The secret of projects that are from before projects had their own."""
    chosen = settings.webhook_secret
    return (
        await store.webhooks.installation_secret() if chosen is None else chosen.get_secret_value()
    )


def _milliseconds(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)
