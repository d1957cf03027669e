"""The record as it grows: every transition, once, in one order that all readers share.

Rows become visible out of the order of their numbers: the transaction that took the lower number
may commit last. So they are read by transaction, then by row, and only below the oldest transaction
that still runs, where nothing can be added any more. What comes after a position is therefore the
same for every reader at any time. The price: while a transaction that writes stays open, anywhere
on the database server, what was written after its beginning is held back.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import orjson
import structlog

from botpool.changes import RECORD
from botpool.errors import BotpoolError, InvalidPosition, PositionGone
from botpool.store.listening import listening

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from botpool.states import Platform
    from botpool.store import Database, Store
    from botpool.store.record import Recorded

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_PAGE = 500
_MOST_WAITING = 1000
_MOST_REPLAYS_AT_A_TIME = 2
_POLL_SECONDS = 1.0
_FIRST_LOOK_AGAIN_SECONDS = 0.01
# Retention is at least a day. An hour less, for clocks and for transactions that took their time.
_SURELY_KEPT_MS = 23 * 3_600_000

TOO_SLOW = "events came faster than they were read"
STOPPING = "botpool stops"


class Position(NamedTuple):
    """A place in the record: after this row of this transaction. As text it is opaque to callers.

    `at_ms` tells how old it is; it has no part in the order.
    """

    xid: int
    id: int
    at_ms: int

    def __str__(self) -> str:
        """What `parse` reads."""
        return f"{self.xid}-{self.id}-{self.at_ms}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a position. Raises `InvalidPosition`."""
        numbers = re.fullmatch(r"([0-9]{1,20})-([0-9]{1,19})-([0-9]{1,15})", text)
        position = cls(*map(int, numbers.groups())) if numbers else None
        if position is None or position.xid >= 2**64 or position.id >= 2**63:
            raise InvalidPosition("This is no position in the record: send an `id` as it came.")
        return position


@dataclass(frozen=True, eq=False)
class Event:
    """A transition, its place in the record, and the key whose bot it tells of."""

    position: Position
    recorded: Recorded

    @cached_property
    def text(self) -> bytes:
        """The event as server-sent text. Written once, however many read it."""
        step = self.recorded.transition
        data = {
            "id": step.id,
            "at": step.at,
            "machine": step.machine,
            "platform": step.platform,
            "from": step.from_status,
            "to": step.to_status,
            "slotId": step.slot_id,
            "slotName": step.slot_name,
            "containerRef": step.container_ref,
            "lease": step.lease,
            "botId": step.bot_id,
            "correlationId": step.correlation_id,
            "reason": step.reason,
            "details": step.details,
        }
        head = f"id: {self.position}\nevent: {step.machine}\ndata: ".encode()
        return head + orjson.dumps(data, option=orjson.OPT_UTC_Z) + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events somebody wants, or may see: with `key_id`, those of that key's bots alone."""

    platform: Platform | None = None
    bot_id: int | None = None
    key_id: int | None = None

    def wanted(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events that pass, in order."""
        if self.platform is None and self.bot_id is None and self.key_id is None:
            return events
        return [event for event in events if self._passes(event.recorded)]

    def _passes(self, recorded: Recorded) -> bool:
        step = recorded.transition
        return (
            (self.platform is None or step.platform is self.platform)
            and (self.bot_id is None or step.bot_id == self.bot_id)
            and (self.key_id is None or (recorded.key_id == self.key_id and step.machine == "bot"))
        )


class Record:
    """Follows the record for all who read it: each new row is read once, however many there are.

    It works while `run` does, and only while somebody listens. One a process.
    """

    def __init__(self, store: Store) -> None:
        self.poll_seconds = _POLL_SECONDS
        """How often new rows are looked for when nothing announced them."""
        self._store = store
        self._awake = asyncio.Event()
        self._stopping = False
        self._look_again_seconds = _FIRST_LOOK_AGAIN_SECONDS
        self._replays = asyncio.Semaphore(_MOST_REPLAYS_AT_A_TIME)
        self._open: set[Subscription] = set()
        self._live: set[Subscription] = set()
        # What was handed to those who listen; `None` while nobody does.
        self._position: Position | None = None

    @property
    def subscriptions(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def position(self) -> Position | None:
        """Up to where events were handed to those who listen live, if anybody does."""
        return self._position

    async def run(self, database: Database) -> None:
        """Follow until `stop` is called. A database that is away is waited for."""
        try:
            async with listening(database, RECORD, self._awake.set):
                while not self._stopping:
                    self._awake.clear()
                    await self._wait(await self._follow())
        finally:
            self.stop()

    def stop(self) -> None:
        """Let `run` come to its end, and every subscription, now and later."""
        self._stopping = True
        self._awake.set()
        for subscription in tuple(self._open):
            subscription.close(STOPPING)

    async def subscribe(self, after: Position | None, wanted: Filter) -> Subscription:
        """What comes after a position, without a gap or a duplicate; or whatever comes from now on.

        Raises `PositionGone` when some of it may be forgotten, or when the record is not yet there.
        """
        if after is None:
            position = self._position or await self._end()
        else:
            position = await self._check(after)
        subscription = Subscription(self, position, wanted)
        self._open.add(subscription)
        if after is None:
            subscription.join()
        if self._stopping:
            subscription.close(STOPPING)
        return subscription

    # What a subscription asks for

    async def read(self, after: Position) -> list[Event]:
        """One page of what comes after a position. Others need the database: few read at a time."""
        async with self._replays:
            page = await self._store.read_record(after.xid, after.id, _PAGE)
        return list(map(_event, page.rows))

    def join(self, subscription: Subscription) -> Position:
        """Offer to it whatever comes from now on, and return after which position that is."""
        self._live.add(subscription)
        if self._position is None:
            self._position = subscription.position
            self._awake.set()
        return max(self._position, subscription.position)

    def leave(self, subscription: Subscription) -> None:
        """Offer it nothing any more."""
        self._open.discard(subscription)
        self._live.discard(subscription)
        if not self._live:
            self._position = None

    # Inside

    async def _end(self) -> Position:
        """Where the record ends: all of its transactions are before this, and all others after."""
        bounds = await self._store.get_record_bounds()
        return Position(bounds.settled_xid, 0, _ms(bounds.read_at))

    async def _check(self, position: Position) -> Position:
        bounds = await self._store.get_record_bounds()
        if position.xid > bounds.next_xid:
            raise PositionGone("The record has not come to this position: begin without one.")
        kept = bounds.oldest_xid is not None and position[:2] >= bounds[:2]
        if not kept and position.at_ms < _ms(bounds.read_at) - _SURELY_KEPT_MS:
            raise PositionGone("The record does not go back to this position: begin without one.")
        return position

    async def _follow(self) -> float:
        """Hand out what is new, and return in how many seconds to look again."""
        before = self._position
        if before is None:
            return self.poll_seconds
        try:
            page = await self._store.read_record(before.xid, before.id, _PAGE)
        except BotpoolError as error:
            _log.warning("the record can't be read", error=str(error))
            return self.poll_seconds
        if self._position != before:
            return 0  # the last one left, and another one listens from elsewhere
        if page.rows:
            events = list(map(_event, page.rows))
            self._position = events[-1].position
            for subscription in tuple(self._live):
                subscription.offer(events)
        if len(page.rows) == _PAGE:
            return 0
        if not page.held_back:
            self._look_again_seconds = _FIRST_LOOK_AGAIN_SECONDS
            return self.poll_seconds
        # Nothing announces the end of the transaction that they wait for.
        self._look_again_seconds = min(self._look_again_seconds * 2, self.poll_seconds)
        return self._look_again_seconds

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            return


class Subscription:
    """What one reader gets, from a position on. To be closed when the reader goes away.

    New events wait in a queue of bounded length; who lets it fill up is dropped, and can resume at
    `position`.
    """

    def __init__(self, record: Record, position: Position, wanted: Filter) -> None:
        self.position = position
        """Whatever came up to here, and was wanted, was handed to the reader."""
        self.ended: str | None = None
        """Why no more comes."""
        self._record = record
        self._filter = wanted
        self._waiting: deque[Event] = deque()
        self._ready = asyncio.Event()
        # New events from here on wait for us; `None` as long as we read what is behind.
        self._live_from: Position | None = None

    async def batches(self, quiet_seconds: float) -> AsyncGenerator[Sequence[Event]]:
        """Whatever comes, in order and once; an empty batch when nothing came for so long.

        Ends when the subscription does: `ended` tells why.
        """
        while self.ended is None:
            if self._live_from is None or self.position < self._live_from:
                batch = await self._replay()
            else:
                batch = await self._next(quiet_seconds)
            if batch is not None:
                yield batch

    def close(self, why: str = "closed") -> None:
        """Let no more come. What waited is forgotten."""
        self.ended = self.ended or why
        self._waiting.clear()
        self._ready.set()
        self._record.leave(self)

    def join(self) -> None:
        """Let new events wait for us from now on."""
        self._live_from = self._record.join(self)

    def offer(self, events: Sequence[Event]) -> None:
        """Take what is wanted of new events. Too many that wait end the subscription."""
        if self._live_from is not None and events[0].position <= self._live_from:
            live_from = self._live_from
            events = [event for event in events if event.position > live_from]
        wanted = self._filter.wanted(events)
        if len(self._waiting) + len(wanted) > _MOST_WAITING:
            self.close(TOO_SLOW)
        elif wanted:
            self._waiting.extend(wanted)
            self._ready.set()

    async def _replay(self) -> Sequence[Event] | None:
        """One page of what is behind us, until we are where new events wait."""
        try:
            events = await self._record.read(self.position)
        except BotpoolError as error:
            _log.warning("replay interrupted", error=str(error))
            await asyncio.sleep(self._record.poll_seconds)
            return ()
        if (live_from := self._live_from) is not None:
            events = [event for event in events if event.position <= live_from]
        if events:
            self.position = events[-1].position
            return self._filter.wanted(events) or None
        if live_from is not None:
            self.position = live_from
        elif self.ended is None:
            # What was handed out since we read is behind us too: the next page has it.
            self.join()
        return None

    async def _next(self, quiet_seconds: float) -> Sequence[Event] | None:
        """What waits, or nothing after so long."""
        try:
            async with asyncio.timeout(quiet_seconds):
                await self._ready.wait()
        except TimeoutError:
            if not self._waiting:
                # So nothing that we want was handed out up to here.
                self.position = max(self.position, self._record.position or self.position)
                return ()
        self._ready.clear()
        batch = tuple(self._waiting)
        self._waiting.clear()
        if not batch:
            return None
        self.position = batch[-1].position
        return batch


def _event(recorded: Recorded) -> Event:
    step = recorded.transition
    return Event(Position(recorded.xid, step.id, _ms(step.at)), recorded)


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
