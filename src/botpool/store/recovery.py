"""The queries that recovery works with: what is stuck, and hosts that are ill."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.models import Host, ImagePull
from botpool.store.base import Queries
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from botpool.models import HostFailure, Slot, Transition
    from botpool.store.work import PullKey


class RecoveryQueries(Queries):
    """The queries of sql/recovery.sql."""

    async def list_deploying(self, for_ms: int) -> list[Slot]:
        """Slots that deploy for so long, while their bots could be heard."""
        return await self._slots("list_deploying", for_ms)

    async def list_silent(self, since: datetime, for_ms: int) -> list[Slot]:
        """Busy slots whose bot was not heard since then, nor for so long while it could be."""
        return await self._slots("list_silent", since, for_ms)

    async def keep_hearing(self, within_ms: int) -> None:
        """Note that bots can be heard, as is done again before so much time has passed."""
        await self._database.execute(QUERIES["keep_hearing"], within_ms)

    async def heard_for(self, since: datetime) -> timedelta:
        """For how long somebody could be heard since then."""
        row = await self._database.fetch_one(QUERIES["heard_for"], since)
        return row["time"] if row else timedelta()

    async def prune_outages(self, before: datetime) -> int:
        """Forget outages that ended before then."""
        return await self._database.execute(QUERIES["prune_outages"], before)

    async def list_ended(self) -> list[Slot]:
        """Slots whose bot has ended."""
        return await self._slots("list_ended")

    async def list_abandoned(self) -> list[Slot]:
        """Slots whose claim has run out."""
        return await self._slots("list_abandoned")

    async def list_expired_pulls(self) -> list[ImagePull]:
        """Pulls whose claim has run out."""
        rows = await self._database.fetch(QUERIES["list_expired_pulls"])
        return [ImagePull(**row) for row in rows]

    async def list_overdue(self) -> list[int]:
        """Bots that wait past their deadline."""
        return [row["bot_id"] for row in await self._database.fetch(QUERIES["list_overdue"])]

    async def push_on(self, slot_id: int, lease: int, reason: str) -> list[Transition]:
        """Let a deployment's time count from now, and count that."""
        return await self._change("push_on", slot_id, lease, reason)

    async def abandon_claims(self, slot_ids: Sequence[int]) -> bool:
        """Let go of claims that have run out. Whether there was one."""
        return await self._found("abandon_claims", slot_ids)

    async def abandon_pull(self, key: PullKey) -> bool:
        """Let somebody else have a pull whose claim has run out. Whether it had."""
        return await self._found("abandon_pull", *key)

    async def note_failure(
        self, failure: HostFailure, *, most: int, within_ms: int, probe_in_ms: int
    ) -> bool:
        """Note that something failed on a host. Whether it is ill since this moment."""
        row = await self._database.fetch_one(
            QUERIES["note_failure"],
            *(failure.engine, failure.host, failure.what, failure.image, failure.reason),
            *(most, within_ms, probe_in_ms),
        )
        return row is not None and row["ill"]

    async def has_failed(self, engine: str, host: str) -> bool:
        """Whether something failed on a host since something last went well."""
        return await self._found("has_failed", engine, host)

    async def note_success(self, engine: str, host: str, *, answers_only: bool) -> list[Transition]:
        """Note that a host does well, or only answers. Who waited for its slots has them."""
        return await self._change("note_success", engine, host, answers_only)

    async def probe_hosts(self) -> list[Transition]:
        """Let one slot of each ill host be taken, where it is time for that."""
        return await self._change("probe_hosts")

    async def list_hosts(self) -> list[Host]:
        """Every host that something was tried on, or that has slots."""
        return [Host(**row) for row in await self._database.fetch(QUERIES["list_hosts"])]
