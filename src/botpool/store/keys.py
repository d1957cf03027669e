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

    async def add(self, name: str, role: Role, digest: bytes, prefix: str) -> ApiKey:
        """Add a key, unless it is there already. Returns the key as the database has it."""
        (row,) = await self._queries.rows("add", name, role, digest, prefix)
        return _api_key(row)

    async def all(self) -> list[ApiKey]:
        """Every key, revoked ones too, the oldest first."""
        return [_api_key(row) for row in await self._queries.rows("all")]

    async def revoke(self, key_id: int) -> ApiKey | None:
        """Revoke a key. None if there is no such key."""
        row = await self._queries.row("revoke", key_id)
        return None if row is None else _api_key(row)

    async def find(self, digests: Collection[bytes], ids: Collection[int]) -> list[KnownKey]:
        """The keys with these digests or ids, without revoked ones."""
        return [
            KnownKey(key=_api_key(row), digest=row["digest"], read_at=row["read_at"])
            for row in await self._queries.rows("find", digests, ids)
        ]

    async def note_uses(self, ids: Collection[int], every_ms: int) -> None:
        """Note that these keys were used, at most once in `every_ms`."""
        await self._queries.run("note_uses", ids, every_ms)


def _api_key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        id=row["id"],
        name=row["name"],
        role=Role(row["role"]),
        prefix=row["prefix"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )
