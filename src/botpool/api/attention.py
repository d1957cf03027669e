"""Attention: what needs a person."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Self

from fastapi import APIRouter
from pydantic import Field

from botpool.api.auth import KeyRoute, TheAdmin
from botpool.api.dependencies import TheStore
from botpool.api.errors import documented
from botpool.api.wire import Wire
from botpool.errors import Forbidden, TooManyRequests, Unauthorized
from botpool.models.attention import Need, NeedKind, Severity
from botpool.states import FailureCause, Platform

router = APIRouter(
    prefix="/api/v1",
    tags=["pool"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)


class NeedActionOut(Wire):
    """What mends it: a call of the API, or a command or setting."""

    label: str
    method: str | None
    path: str | None
    body: dict[str, Any] | None
    command: str | None


class NeedOut(Wire):
    """One thing that needs a person. What it is about is in the fields that are not null."""

    kind: NeedKind
    severity: Severity
    sentence: str
    since: datetime | None
    action: NeedActionOut | None
    count: int | None
    error: str | None = Field(description="The last error, in the engine's own words.")
    cause: FailureCause | None
    platform: Platform | None
    slot_id: int | None
    slot_name: str | None
    bot_id: int | None
    engine: str | None
    host: str | None
    image: str | None
    webhook_id: int | None

    @classmethod
    def of(cls, need: Need) -> Self:
        """A need as it goes over the wire."""
        own = cls.model_fields.keys() - {"action"}
        action = None if need.action is None else NeedActionOut(**asdict(need.action))
        return cls(action=action, **{name: getattr(need, name) for name in own})


class NeedList(Wire):
    """What needs a person now, the most urgent first. Empty if all is well."""

    needs: list[NeedOut]


@router.get("/attention")
async def get_attention(_: TheAdmin, store: TheStore) -> NeedList:
    """What needs a person now, in sentences, with what mends each."""
    return NeedList(needs=[NeedOut.of(need) for need in await store.attention.needs()])
