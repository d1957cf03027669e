"""API keys in the database. Only their hashes are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.keys import ApiKey, KnownKey
from botpool.states import Role
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Collection

    import asyncpg

    from botpool.store.postgres.database import Database


class Keys:
    """The queries of keys.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "keys")

    async def add(
        self, name: str, role: Role, project_id: int | None, digest: bytes, prefix: str
    ) -> ApiKey:
        """Add a key, unless it is there already. Returns the key as the database has it."""
        (row,) = await self._queries.rows("add", name, role, project_id, digest, prefix)
        return api_key(row)

    async def all(self, project_id: int | None = None) -> list[ApiKey]:
        """Every key, or those of a project, also those that work no more, the oldest first."""
        return [api_key(row) for row in await self._queries.rows("all", project_id)]

    async def rotate(
        self, key_id: int, digest: bytes, prefix: str, overlap_ms: int
    ) -> ApiKey | None:
        """Add a key that replaces another one. None if there is none that works."""
        row = await self._queries.row("rotate", key_id, digest, prefix, overlap_ms)
        return None if row is None else api_key(row)

    async def revoke(self, key_id: int) -> ApiKey | None:
        """Revoke a key. None if there is no such key."""
        row = await self._queries.row("revoke", key_id)
        return None if row is None else api_key(row)

    async def find(self, digests: Collection[bytes], ids: Collection[int]) -> list[KnownKey]:
        """The keys with these digests or ids, without those that work no more."""
        return [
            KnownKey(key=api_key(row), digest=row["digest"], read_at=row["read_at"])
            for row in await self._queries.rows("find", digests, ids)
        ]

    async def note_uses(self, ids: Collection[int], every_ms: int) -> None:
        """Note that these keys were used, at most once in `every_ms`."""
        await self._queries.run("note_uses", ids, every_ms)


def api_key(row: asyncpg.Record) -> ApiKey:
    """A row of api_keys."""
    return ApiKey(
        id=row["id"],
        name=row["name"],
        role=Role(row["role"]),
        project_id=row["project_id"],
        prefix=row["prefix"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        expires_at=row["expires_at"],
    )
