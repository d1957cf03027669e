"""API keys: made, listed, rotated and revoked."""

from datetime import datetime, timedelta
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from botpool.access.keys import OVERLAP
from botpool.api.auth import KeyRoute, TheAdmin, TheCaller
from botpool.api.dependencies import TheKeys, TheStore
from botpool.api.errors import documented
from botpool.api.wire import Asked, Wire
from botpool.errors import (
    Forbidden,
    InvalidRequest,
    KeyNotFound,
    ProjectNotFound,
    TooManyRequests,
    Unauthorized,
)
from botpool.models.keys import ApiKey
from botpool.states import Role

router = APIRouter(
    prefix="/api/v1/keys",
    tags=["keys"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, InvalidRequest, TooManyRequests),
)

_LARGEST = 2**63 - 1
KeyId = Annotated[int, Path(alias="keyId", ge=1, le=_LARGEST)]
OverlapMs = Annotated[int, Field(strict=True, ge=0, le=30 * 24 * 3_600_000)]

# The answer has a secret: no cache may keep it.
_PRIVATE = {"Cache-Control": "no-store"}


class CreateKey(Asked):
    """A key to be made."""

    name: str = Field(min_length=1, max_length=100, description="What the key is for.")
    role: Role = Field(
        default=Role.CLIENT,
        description="An `admin` may do everything, a `viewer` see everything, and a `client` use"
        " what belongs to its project.",
    )
    project_id: Annotated[int, Field(strict=True, ge=1, le=_LARGEST)] | None = Field(
        default=None,
        description="The project of a client's key. By default the default project.",
    )


class RotateKey(Asked):
    """How a key is replaced."""

    overlap_ms: OverlapMs = Field(
        default=OVERLAP // timedelta(milliseconds=1),
        description="How long the old key works beside the new one. By default a day.",
    )


class KeyOut(Wire):
    """A key as it is listed."""

    id: int
    name: str
    role: Role
    project_id: int | None = Field(description="Null for a key that is for all projects.")
    prefix: str = Field(description="How the key begins, if botpool made it.")
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None = Field(
        description="When it stops or stopped working: it was revoked, or another replaces it."
    )

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """A key as it goes over the wire."""
        return cls(**{name: getattr(key, name) for name in KeyOut.model_fields})


class NewKeyOut(Wire):
    """A new key, and the secret that callers send. It can't be shown again."""

    key: KeyOut
    secret: str


class KeyList(Wire):
    """Keys, the oldest first, also those that work no more."""

    keys: list[KeyOut]


@router.get("")
async def list_keys(
    caller: TheCaller,
    store: TheStore,
    project_id: Annotated[int | None, Query(alias="projectId", ge=1, le=_LARGEST)] = None,
) -> KeyList:
    """List every key, and when it was last used. A client's key sees those of its project."""
    if not caller.may_see(project_id):
        return KeyList(keys=[])
    found = await store.keys.all(caller.project_id or project_id)
    return KeyList(keys=[KeyOut.of(key) for key in found])


@router.post("", status_code=201, responses=documented(ProjectNotFound))
async def create_key(
    request: CreateKey, response: Response, _: TheAdmin, keys: TheKeys
) -> NewKeyOut:
    """Make a key. The answer has its secret, which can't be shown again."""
    response.headers.update(_PRIVATE)
    made, secret = await keys.create(request.name, request.role, request.project_id)
    return NewKeyOut(key=KeyOut.of(made), secret=secret)


@router.post("/{keyId}/rotate", status_code=201, responses=documented(KeyNotFound))
async def rotate_key(
    key_id: KeyId,
    response: Response,
    caller: TheCaller,
    keys: TheKeys,
    request: RotateKey | None = None,
) -> NewKeyOut:
    """Replace a key by a new one like it. Both work for a while. A client may rotate its own key.

    `expiresAt` of the old key says for how long it works.
    """
    if caller.role is Role.CLIENT and caller.id != key_id:
        raise KeyNotFound(f"There is no key {key_id} that works.")
    response.headers.update(_PRIVATE)
    overlap = timedelta(milliseconds=(request or RotateKey()).overlap_ms)
    made, secret = await keys.rotate(key_id, overlap)
    return NewKeyOut(key=KeyOut.of(made), secret=secret)


@router.delete("/{keyId}", responses=documented(KeyNotFound))
async def revoke_key(key_id: KeyId, _: TheAdmin, keys: TheKeys) -> KeyOut:
    """Revoke a key. Every replica refuses it within seconds. Its project keeps its bots."""
    return KeyOut.of(await keys.revoke(key_id))
