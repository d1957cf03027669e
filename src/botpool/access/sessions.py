"""Sessions: what a browser keeps in place of a key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.models.keys import token_digest

if TYPE_CHECKING:
    from botpool.access.keys import Keys
    from botpool.models.keys import ApiKey, KnownKey

SIGN_IN_LIFETIME = timedelta(days=7)
"""How long a browser stays signed in."""

_SIGNED = re.compile(r"(?P<key_id>\d{1,18})\.(?P<expires>\d{1,12})\.(?P<seal>[\w-]+)", re.ASCII)


class Sessions:
    """Signs browsers in with keys."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def sign_in(self, key: str) -> tuple[ApiKey, str] | None:
        """The API key of this text, and the session that the browser keeps in place of it.

        The session reveals nothing about the key, lasts for `SIGN_IN_LIFETIME`, and ends when the
        key is revoked.
        """
        known = await self._keys.known(token_digest(key))
        if known is None:
            return None
        expires = int((known.read_at + SIGN_IN_LIFETIME).timestamp())
        return known.key, f"{known.key.id}.{expires}.{_seal(known, expires)}"

    async def authenticate(self, signed: str) -> ApiKey | None:
        """The key that a browser signed in with, if its session is genuine and not expired."""
        said = _SIGNED.fullmatch(signed)
        known = await self._keys.known(int(said["key_id"])) if said else None
        if said is None or known is None:
            return None
        expires = int(said["expires"])
        ours = hmac.compare_digest(_seal(known, expires), said["seal"])
        return known.key if ours and known.read_at.timestamp() < expires else None


def _seal(known: KnownKey, expires: int) -> str:
    """A signature that can only be made by a process that knows the key's hash."""
    said = f"botpool sign-in {known.key.id} {expires}"
    seal = hmac.digest(known.digest, said.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(seal).rstrip(b"=").decode()
