"""What belongs to the installation as a whole: its name, its clock, its duties, its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.queries import Queries
from botpool.store.schema.migrate import check_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.store.postgres.database import Database

WORK, FEED, WEBHOOKS = "botpool_work", "botpool_record", "botpool_webhooks"
"""The channels on which the reconcilers, the feed, and the webhook deliverers are woken."""
ASKED = "botpool_asked"
"""The channel on which workers are told that an operator asked for something at an engine."""
LOGS = "botpool_logs"
"""The channel on which workers are told that somebody wants a container's output."""


class Installation:
    """The queries of installation.sql."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries(database, "installation")

    async def name(self) -> str:
        """The name by which engines know this installation."""
        (row,) = await self._queries.rows("name")
        name: str = row["id"]
        return name

    async def check_schema(self) -> None:
        """Raise a `SetupError` unless the database answers and has the schema that we need."""
        await check_schema(self._database)

    async def check_writable(self) -> None:
        """Raise `DatabaseUnreachable` if the database takes no writes: its disk may be full."""
        await self._queries.run("check_writable")

    async def take_duty(self, name: str, every_ms: int) -> bool:
        """Take a duty that one replica does every `every_ms`. Returns whether it is due."""
        return await self._queries.found("take_duty", name, every_ms)

    async def announce(self, channels: Sequence[str]) -> None:
        """Wake the listeners on these channels."""
        await self._queries.run("announce", channels)

    async def now(self) -> datetime:
        """The database's time."""
        (row,) = await self._queries.rows("now")
        now: datetime = row[0]
        return now

    async def use_virtual_clock(self) -> None:
        """Freeze the time until it is set. For tests and simulations: there is no way back."""
        await self._queries.run("use_virtual_clock")

    async def set_virtual_time(self, now: datetime) -> None:
        """Set the time of a database that uses a virtual clock."""
        await self._queries.run("set_virtual_time", now)
