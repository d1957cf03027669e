"""Sessions and the codes that begin them, in the database. Only their hashes are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.sessions import Session
from botpool.store.keys import api_key
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    import asyncpg

    from botpool.store.postgres.database import Database


class Sessions:
    """The queries of sessions.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "sessions")

    async def invite(self, digest: bytes, key_id: int, lasts_ms: int) -> datetime:
        """Let a code sign one browser in with a key. Returns when it expires."""
        (row,) = await self._queries.rows("invite", digest, key_id, lasts_ms)
        expires_at: datetime = row["expires_at"]
        return expires_at

    async def sign_in(
        self, code: bytes, session: bytes, lasts_ms: int, most: int
    ) -> Session | None:
        """Use a code up and begin a session. None if the code is unknown, used or expired.

        A key has at most `most` sessions: the oldest ones end.
        """
        row = await self._queries.row("sign_in", code, session, lasts_ms, most)
        return None if row is None else _session(row)

    async def find(self, digests: Collection[bytes]) -> dict[bytes, Session]:
        """The sessions with these digests, without those that are over."""
        return {
            row["session_digest"]: _session(row)
            for row in await self._queries.rows("find", digests)
        }

    async def is_live(self, session_id: int) -> bool:
        """Whether a session is not over."""
        return await self._queries.found("is_live", session_id)

    async def live(self, key_id: int | None, limit: int) -> list[Session]:
        """The newest sessions, or those of a key, the newest first."""
        return [_session(row) for row in await self._queries.rows("live", key_id, limit)]

    async def end(self, session_id: int, key_id: int | None = None) -> bool:
        """End a session, with `key_id` only one of that key. Whether there was one."""
        return await self._queries.run("end", session_id, key_id) > 0

    async def prune(self) -> int:
        """Delete what has expired."""
        return await self._queries.run("prune")


def _session(row: asyncpg.Record) -> Session:
    return Session(
        id=row["session_id"],
        key=api_key(row),
        created_at=row["began_at"],
        expires_at=row["ends_at"],
    )
