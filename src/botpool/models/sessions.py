"""Sessions: browsers that are signed in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.keys import ApiKey

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A browser that is signed in with a key, until the session expires or is ended."""

    id: int
    key: ApiKey
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A code that signs one browser in, once."""

    code: str = field(repr=False)
    expires_at: datetime

    def link(self, url: str) -> str:
        """The link that signs a browser in at the botpool with this URL."""
        return f"{url.rstrip('/')}/sign-in?code={self.code}"


def new_secret() -> str:
    """A new random text, for a code or for what a browser keeps."""
    return secrets.token_urlsafe(_SECRET_BYTES)
