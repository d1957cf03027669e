"""API keys."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.states import Role

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is listed. `prefix` is how it begins, if botpool made it.

    A client's key belongs to a project. Others have none: they are for all projects.
    `expires_at` says when it stops or stopped working: it was revoked, or another key replaces it.
    """

    id: int
    name: str
    role: Role
    project_id: int | None
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None

    def may_see(self, project_id: int | None) -> bool:
        """Whether it may see what belongs to a project. `None` is its own, or all."""
        return self.project_id is None or project_id in {None, self.project_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that works, its hash, and the database's time when it was read."""

    key: ApiKey
    digest: bytes = field(repr=False)
    read_at: datetime


def new_key(role: Role) -> str:
    """A new random key."""
    return f"bp_{role}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def token_digest(token: str) -> bytes:
    """The hash of a key or a slot's token. Both are random, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).digest()
