"""What happened, in order: every transition, and everything that was done on purpose.

Transitions are taken from what the statements return. So they are complete, even if a replica was
killed before it got the result of its statement.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from typing import TYPE_CHECKING

from botpool.simulation.virtual_time import ClockedDatabase
from botpool.states import BOT_ENDED, SLOT_HOLDS_BOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import asyncpg

Assignment = tuple[int, int]
"""A slot's id, and a lease."""

_KEPT = 2000


def shown(seconds: float) -> str:
    """A virtual time as people read it: hours, minutes, seconds."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes) // 60:02}:{int(minutes) % 60:02}:{rest:06.3f}"


class Journal:
    """Everything that happened. Two runs are the same if their digests are."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show
        self._last_id = 0
        self._digest = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=_KEPT)
        self.counts: Counter[str] = Counter()
        """How often each thing was done on purpose."""
        self.transitions = 0
        self.over: dict[Assignment, int] = {}
        """The assignments that are over, and after how many transitions they ended."""
        self.bots: dict[Assignment, int] = {}
        """The bot of each assignment."""
        self.live: set[int] = set()
        """The bots that have not ended."""
        self.ended: Counter[str] = Counter()
        """How many bots have ended in each status."""
        self.watchers: list[Callable[[asyncpg.Record], None]] = []
        """Called for every transition."""

    def note(self, line: str) -> None:
        """Note something that happened now."""
        line = f"{shown(asyncio.get_running_loop().time())}  {line}"
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def did(self, what: str, more: str = "") -> None:
        """Note and count something that was done on purpose."""
        self.counts[what] += 1
        self.note(f"* {what} {more}".rstrip())

    def read(self, rows: Sequence[asyncpg.Record]) -> None:
        """Note the new transitions among these rows."""
        if not rows or "machine" not in rows[0]:
            return
        # A creation that writes none has a row without one, which tells of limits alone.
        written = [row for row in rows if row["id"] is not None]
        for row in sorted(written, key=lambda row: int(row["id"])):
            if row["id"] > self._last_id:
                self._last_id = row["id"]
                self._read(row)

    def _read(self, row: asyncpg.Record) -> None:
        self.transitions += 1
        machine, to = row["machine"], row["to_status"]
        self._digest.update(
            repr(
                (
                    *(row["at"].isoformat(), machine, row["slot_name"], row["bot_id"]),
                    *(row["from_status"], to, row["lease"], row["reason"]),
                )
            ).encode()
        )
        self.note(
            f"{machine} {row['slot_name'] if machine == 'slot' else row['bot_id']}"
            f" {row['from_status']} → {to}  lease {row['lease']} bot {row['bot_id']}"
            f" of {row['slot_name']}: {row['reason']}"
        )
        if machine == "slot":
            assignment = (row["slot_id"], row["lease"])
            if to in SLOT_HOLDS_BOT:
                self.bots[assignment] = row["bot_id"]
            else:
                self.over.setdefault(assignment, self.transitions)
        elif row["from_status"] is None:
            self.live.add(row["bot_id"])
        if machine == "bot" and to in BOT_ENDED:
            self.live.discard(row["bot_id"])
            self.ended[to] += 1
        for watch in self.watchers:
            watch(row)

    @property
    def digest(self) -> str:
        """The hash of all transitions: statuses, times, slots, reasons."""
        return self._digest.hexdigest()[:16]


class RecordedDatabase(ClockedDatabase):
    """The one database. Its transitions go into the journal."""

    journal: Journal

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement and return its rows."""
        rows = await super().fetch(sql, *args)
        self.journal.read(rows)
        return rows
