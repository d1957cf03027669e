"""Sessions: what a browser keeps in place of a key, and the codes that begin them.

Both are random and stored only as hashes, so nothing that the database has opens anything. Each is
read from the database with every use: a session that is ended is over on every replica at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.errors import SessionNotFound
from botpool.models.keys import token_digest
from botpool.models.sessions import Invitation, new_secret
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.keys import ApiKey
    from botpool.models.sessions import Session
    from botpool.store import Store

SESSION_LIFETIME = timedelta(days=7)
"""How long a browser stays signed in."""

CODE_LIFETIME = timedelta(minutes=10)
"""How long a link that signs in works, unless it is used before."""

_MOST = 100
"""How many sessions a key may have. The oldest ones end."""
_MOST_LISTED = 1000
_MILLISECOND = timedelta(milliseconds=1)


class Sessions:
    """Signs browsers in and out. Safe to share between tasks and to use in many replicas."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._find = Batcher(self._find_sessions)

    async def invite(self, key: ApiKey) -> Invitation:
        """A new code that signs one browser in with a key."""
        code = new_secret()
        lasts_ms = CODE_LIFETIME // _MILLISECOND
        expires_at = await self._store.sessions.invite(token_digest(code), key.id, lasts_ms)
        return Invitation(code=code, expires_at=expires_at)

    async def sign_in(self, code: str) -> tuple[Session, str] | None:
        """Use a code up. The session, and the text that the browser keeps for it.

        None if the code is unknown, used or expired, or if its key is revoked.
        """
        kept = new_secret()
        lasts_ms = SESSION_LIFETIME // _MILLISECOND
        session = await self._store.sessions.sign_in(
            token_digest(code), token_digest(kept), lasts_ms, _MOST
        )
        return None if session is None else (session, kept)

    async def authenticate(self, kept: str) -> Session | None:
        """The session of this text, unless it is over or its key is revoked."""
        return await self._find(token_digest(kept))

    async def opens(self, session_id: int) -> bool:
        """Whether a session is not over, and its key not revoked."""
        return await self._store.sessions.is_live(session_id)

    async def sign_out(self, kept: str) -> None:
        """End the session of this text, if there is one."""
        session = await self.authenticate(kept)
        if session is not None:
            await self._store.sessions.end(session.id)

    async def listed(self, key: ApiKey | None = None) -> list[Session]:
        """The newest sessions of all keys, or of one key."""
        return await self._store.sessions.live(None if key is None else key.id, _MOST_LISTED)

    async def end(self, session_id: int, key: ApiKey | None = None) -> None:
        """End a session; with a key, only one of that key. Raises `SessionNotFound`."""
        if not await self._store.sessions.end(session_id, None if key is None else key.id):
            raise SessionNotFound(f"There is no session {session_id}.")

    async def _find_sessions(self, digests: Sequence[bytes]) -> list[Session | None]:
        found = await self._store.sessions.find(digests)
        return [found.get(digest) for digest in digests]
