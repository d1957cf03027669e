"""The events as a stream: each once, as they are written, in the same order for every reader.

Rows don't become visible in the order of their ids: a transaction with a lower id may commit last.
So they are read by transaction, then by id, and only below the oldest transaction that still runs,
where no row can be added any more. Therefore what comes after a position is the same for every
reader at any time. The price: while a writing transaction is open anywhere on the database server,
everything written after its beginning is held back.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import orjson

from botpool.errors import BotpoolError, InvalidPosition, PositionGone
from botpool.logs import log_failure
from botpool.store.installation import FEED
from botpool.store.postgres.listening import listening
from botpool.tasks.backoff import Backoff
from botpool.tasks.loop import Loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from botpool.feed.orders import Orders
    from botpool.models.events import Event
    from botpool.states import Platform
    from botpool.store import Database, Store
    from botpool.store.events import Recorded

_PAGE = 500
_MOST_WAITING = 1000
_MOST_REPLAYS_AT_A_TIME = 2
_POLL_SECONDS = 1.0
_HELD_BACK_SECONDS = 0.02
# Retention is at least a day. One hour less, because of clocks and slow transactions.
_SURELY_KEPT_MS = 23 * 3_600_000

TOO_SLOW = "events came faster than they were read"
STOPPING = "botpool is stopping"


class Position(NamedTuple):
    """A place in the feed: after this row of this transaction. As text it is opaque to callers.

    `at_ms` says how old it is; the order doesn't depend on it.
    """

    xid: int
    id: int
    at_ms: int

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{self.xid}-{self.id}-{self.at_ms}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a position. Raises `InvalidPosition`."""
        numbers = re.fullmatch(r"([0-9]{1,20})-([0-9]{1,19})-([0-9]{1,15})", text)
        position = cls(*map(int, numbers.groups())) if numbers else None
        if position is None or position.xid >= 2**64 or position.id >= 2**63:
            raise InvalidPosition(
                "This is not a position in the stream: send the `id` of an event, unchanged."
            )
        return position


@dataclass(frozen=True, eq=False)
class StreamEvent:
    """An event, its place in the feed, and the project of its bot."""

    position: Position
    event: Event
    project_id: int | None

    @cached_property
    def text(self) -> bytes:
        """The event as server-sent text. Made once for all readers."""
        head = f"id: {self.position}\nevent: {self.event.type}\ndata: ".encode()
        return head + orjson.dumps(self.event) + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events a reader wants or may see. With `project_id`, only those of its bots."""

    platform: Platform | None = None
    bot_id: int | None = None
    project_id: int | None = None

    def wanted(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """The events that pass, in order."""
        if self.platform is None and self.bot_id is None and self.project_id is None:
            return events
        return [event for event in events if self._passes(event)]

    def _passes(self, told: StreamEvent) -> bool:
        event = told.event
        return (
            (self.platform is None or event.data["platform"] == self.platform)
            and (self.bot_id is None or event.data.get("botId") == self.bot_id)
            and (self.project_id is None or self._is_own(told))
        )

    def _is_own(self, told: StreamEvent) -> bool:
        return told.project_id == self.project_id and told.event.type.of_bot


class Feed:
    """Reads new events from the database, once for all readers of this process.

    It works while `run` runs, and only while there is a reader. Bots that wait for `orders` hear of
    each announcement, too.
    """

    def __init__(self, store: Store, orders: Orders | None = None) -> None:
        self._store = store
        self.orders = orders
        self._loop = Loop(self._follow, poll_seconds=_POLL_SECONDS, failed="can't read events")
        self._held_back = 0
        self._replays = asyncio.Semaphore(_MOST_REPLAYS_AT_A_TIME)
        self._open: set[Subscription] = set()
        self._live: set[Subscription] = set()
        # Up to where live readers got events; `None` while there are no live readers.
        self._position: Position | None = None

    @property
    def poll_seconds(self) -> float:
        """How often to look for new events when none are announced."""
        return self._loop.poll_seconds

    @poll_seconds.setter
    def poll_seconds(self, seconds: float) -> None:
        self._loop.poll_seconds = seconds

    @property
    def subscriptions(self) -> int:
        """How many subscriptions are open."""
        return len(self._open)

    @property
    def position(self) -> Position | None:
        """Up to where live readers got events; `None` if there are no live readers."""
        return self._position

    async def run(self, database: Database) -> None:
        """Read until `stop` is called. If the database is away, wait for it."""
        try:
            async with listening(database, FEED, self._woken):
                await self._loop.run()
        finally:
            self.stop()

    def stop(self) -> None:
        """Make `run` return, and end every subscription, now and later."""
        self._loop.stop()
        if self.orders is not None:
            self.orders.stop()
        for subscription in tuple(self._open):
            subscription.close(STOPPING)

    async def subscribe(self, after: Position | None, wanted: Filter) -> Subscription:
        """The events after a position, without gaps or duplicates; without a position, from now on.

        Raises `PositionGone` if some of them may be deleted, or if the position is in the future.
        """
        if after is None:
            position = self._position or await self._end()
        else:
            position = await self._check(after)
        subscription = Subscription(self, position, wanted)
        self._open.add(subscription)
        if after is None:
            subscription.join()
        if self._loop.stopping:
            subscription.close(STOPPING)
        return subscription

    # What a subscription asks for

    async def read(self, after: Position) -> list[StreamEvent]:
        """One page of the events after a position. Few calls at a time, to spare the database."""
        async with self._replays:
            page = await self._store.events.read(after.xid, after.id, _PAGE)
        return list(map(_event, page.rows))

    def join(self, subscription: Subscription) -> Position:
        """Offer new events to a subscription, and return the position after which they begin."""
        self._live.add(subscription)
        if self._position is None:
            self._position = subscription.position
            self._loop.wake()
        return max(self._position, subscription.position)

    def leave(self, subscription: Subscription) -> None:
        """Offer no more events to a subscription."""
        self._open.discard(subscription)
        self._live.discard(subscription)
        if not self._live:
            self._position = None

    # Inside

    def _woken(self) -> None:
        self._loop.wake()
        if self.orders is not None:
            self.orders.changed()

    async def _end(self) -> Position:
        """Where the feed ends now: after all settled transactions, and before all others."""
        bounds = await self._store.events.bounds()
        return Position(bounds.settled_xid, 0, _ms(bounds.read_at))

    async def _check(self, position: Position) -> Position:
        bounds = await self._store.events.bounds()
        if position.xid > bounds.next_xid:
            raise PositionGone("The stream hasn't reached this position: begin without one.")
        kept = bounds.oldest_xid is not None and position[:2] >= bounds[:2]
        if not kept and position.at_ms < _ms(bounds.read_at) - _SURELY_KEPT_MS:
            raise PositionGone("The stream doesn't go back to this position: begin without one.")
        return position

    async def _follow(self) -> float:
        """Hand out new events, and return in how many seconds to look again."""
        before = self._position
        if before is None:
            return self.poll_seconds
        page = await self._store.events.read(before.xid, before.id, _PAGE)
        if self._position != before:
            return 0  # the last reader left, and a new one begins elsewhere
        if page.rows:
            events = list(map(_event, page.rows))
            self._position = events[-1].position
            for subscription in tuple(self._live):
                subscription.offer(events)
        if len(page.rows) == _PAGE:
            return 0
        if not page.held_back:
            self._held_back = 0
            return self.poll_seconds
        # No announcement comes when the transaction that they wait for ends.
        self._held_back += 1
        return Backoff(_HELD_BACK_SECONDS, self.poll_seconds).seconds(self._held_back)


class Subscription:
    """The events that one reader gets, from a position on. Close it when the reader goes away.

    New events wait in a bounded queue. If the reader is too slow and the queue is full, the
    subscription ends; the reader can resume at `position`.
    """

    def __init__(self, feed: Feed, position: Position, wanted: Filter) -> None:
        self.position = position
        """The reader got everything that it wants up to here."""
        self.ended: str | None = None
        """Why it has ended, if it has."""
        self._feed = feed
        self._filter = wanted
        self._waiting: deque[StreamEvent] = deque()
        self._ready = asyncio.Event()
        # New events after this wait in the queue; `None` while the reader still catches up.
        self._live_from: Position | None = None

    async def batches(self, quiet_seconds: float) -> AsyncGenerator[Sequence[StreamEvent]]:
        """The events in batches, in order; an empty batch if none came for `quiet_seconds`.

        Ends when the subscription ends: `ended` says why.
        """
        while self.ended is None:
            if self._live_from is None or self.position < self._live_from:
                batch = await self._replay()
            else:
                batch = await self._next(quiet_seconds)
            if batch is not None:
                yield batch

    def close(self, why: str = "closed") -> None:
        """End the subscription. Events that wait are dropped."""
        self.ended = self.ended or why
        self._waiting.clear()
        self._ready.set()
        self._feed.leave(self)

    def join(self) -> None:
        """Have new events wait in the queue from now on."""
        self._live_from = self._feed.join(self)

    def offer(self, events: Sequence[StreamEvent]) -> None:
        """Queue the new events that the reader wants. A full queue ends the subscription."""
        if self._live_from is not None and events[0].position <= self._live_from:
            live_from = self._live_from
            events = [event for event in events if event.position > live_from]
        wanted = self._filter.wanted(events)
        if len(self._waiting) + len(wanted) > _MOST_WAITING:
            self.close(TOO_SLOW)
        elif wanted:
            self._waiting.extend(wanted)
            self._ready.set()

    async def _replay(self) -> Sequence[StreamEvent] | None:
        """One page of older events, until the reader has caught up with the queue."""
        try:
            events = await self._feed.read(self.position)
        except BotpoolError as error:
            log_failure("replay interrupted", error)
            await asyncio.sleep(self._feed.poll_seconds)
            return ()
        if (live_from := self._live_from) is not None:
            events = [event for event in events if event.position <= live_from]
        if events:
            self.position = events[-1].position
            return self._filter.wanted(events) or None
        if live_from is not None:
            self.position = live_from
        elif self.ended is None:
            # Events that were handed out since this read are on the next page.
            self.join()
        return None

    async def _next(self, quiet_seconds: float) -> Sequence[StreamEvent] | None:
        """The events that wait in the queue, or nothing after `quiet_seconds`."""
        try:
            async with asyncio.timeout(quiet_seconds):
                await self._ready.wait()
        except TimeoutError:
            if not self._waiting:
                # No event up to here was one that the reader wants.
                self.position = max(self.position, self._feed.position or self.position)
                return ()
        self._ready.clear()
        batch = tuple(self._waiting)
        self._waiting.clear()
        if not batch:
            return None
        self.position = batch[-1].position
        return batch


def _event(recorded: Recorded) -> StreamEvent:
    position = Position(recorded.xid, recorded.id, _ms(recorded.at))
    return StreamEvent(position, recorded.event, recorded.project_id)


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
