"""Sentences in place of codes: statuses, waits, times and sizes, as people say them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from botpool.meetings import FORMS
from botpool.models.diagnoses import Result
from botpool.models.waiting import Wait
from botpool.quantities import counted, duration, elapsed, milliseconds, ordinal, pulled, size
from botpool.states import BotStatus, FailureCause, Platform, Role, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from botpool.models.attention import Need
    from botpool.models.bots import Bot
    from botpool.models.diagnoses import Diagnosis
    from botpool.models.events import Event
    from botpool.models.queue import QueuePlace
    from botpool.models.waiting import WaitingFor

PLATFORMS = {
    Platform.GOOGLE_MEET: "Google Meet",
    Platform.MICROSOFT_TEAMS: "Microsoft Teams",
    Platform.ZOOM: "Zoom",
}

MEETING_FORMS = [(PLATFORMS[platform], *form) for platform, *form in FORMS]

CAUSES = {
    FailureCause.QUEUE_TIMEOUT: "no slot in time",
    FailureCause.IMAGE_PULL: "image not pulled",
    FailureCause.ENGINE: "engine",
    FailureCause.START_TIMEOUT: "did not start",
    FailureCause.CRASHED: "crashed",
    FailureCause.HEARTBEAT_LOST: "fell silent",
    FailureCause.LEFT_BY_HOST: "sent out of the call",
    FailureCause.NOT_ADMITTED: "not let in",
    FailureCause.BOT_FAILED: "gave up",
    FailureCause.MAX_DURATION: "stayed as long as it may",
}

STATUSES = {
    BotStatus.PENDING: "Created",
    BotStatus.QUEUED: "Waits for a slot",
    BotStatus.DEPLOYING: "Launches",
    BotStatus.JOINING_CALL: "Joins the call",
    BotStatus.IN_WAITING_ROOM: "In the waiting room",
    BotStatus.IN_CALL: "In call",
    BotStatus.LEAVING: "Leaves the call",
    BotStatus.DONE: "Done",
    BotStatus.FATAL: "Failed",
    BotStatus.CANCELLED: "Cancelled",
}

TONES: Mapping[BotStatus, str] = {
    BotStatus.PENDING: "idle",
    BotStatus.QUEUED: "waiting",
    BotStatus.DEPLOYING: "deploying",
    BotStatus.JOINING_CALL: "deploying",
    BotStatus.IN_WAITING_ROOM: "deploying",
    BotStatus.IN_CALL: "busy",
    BotStatus.LEAVING: "releasing",
    BotStatus.DONE: "idle",
    BotStatus.FATAL: "error",
    BotStatus.CANCELLED: "idle",
}
"""The colour and the shape of a bot's status: those of slots, and `waiting`."""

ROLES = {
    Role.ADMIN: "admin",
    Role.CLIENT: "client",
    Role.VIEWER: "viewer: sees all, changes nothing",
}

_WAITS = {
    Wait.SLOT: "Waits for a slot",
    Wait.PAUSED: "Waits: launches are paused",
    Wait.ROOM: "Waits for room on a host",
    Wait.WORKER: "Waits for a worker",
    Wait.IMAGE: "Waits for the image",
    Wait.ENGINE: "Waits for the engine",
    Wait.START: "Its container starts",
    Wait.CLAIM: "Its container runs, and has not claimed its bot yet",
}

_SECOND = timedelta(seconds=1)


class Sentence(NamedTuple):
    """What a bot does, in which tone, and since when, if that is worth telling."""

    text: str
    tone: str
    since: datetime | None = None


def of_bot(bot: Bot, waiting: WaitingFor | None, place: QueuePlace | None = None) -> Sentence:
    """What a bot does now, or how it ended."""
    tone = TONES[bot.status]
    if bot.status is BotStatus.FATAL and bot.failure_cause is not None:
        return Sentence(f"Failed: {CAUSES[bot.failure_cause]}", tone)
    if bot.ended_at is not None:
        if bot.status is BotStatus.DONE and bot.joined_at is not None:
            stayed = (bot.left_at or bot.ended_at) - bot.joined_at
            return Sentence(f"Done, after {duration(stayed)} in its call", tone)
        return Sentence(STATUSES[bot.status], tone)
    if waiting is not None:
        return Sentence(_waits(waiting, place), tone, waiting.since)
    if bot.status is BotStatus.IN_CALL:
        return Sentence("In call for", tone, bot.joined_at)
    return Sentence(STATUSES[bot.status], tone)


def _waits(waiting: WaitingFor, place: QueuePlace | None) -> str:
    text = _WAITS[waiting.what]
    if waiting.what is Wait.IMAGE:
        if waiting.error:
            return f"{text}: {waiting.error}"
        if waiting.total:
            return f"{text}: {pulled(waiting.current or 0, waiting.total)}"
    if waiting.what is Wait.ENGINE and waiting.error:
        return f"{text}: {waiting.error}"
    if place is not None:
        text += f", {ordinal(place.position)} in the queue"
        if place.estimated_wait_ms is not None:
            text += f", about {duration(timedelta(milliseconds=place.estimated_wait_ms))} to go"
    return text


def of_wait(waiting: WaitingFor) -> str:
    """What a slot or a bot waits for."""
    return _waits(waiting, None)


def of_exit(code: int) -> str:
    """What a container ended with, and what that means, where it means the same everywhere."""
    meaning = {0: "ended by itself", 137: "killed", 143: "told to stop"}.get(code)
    return f"{code}, {meaning}" if meaning else str(code)


def _ticking(kind: str, told: Callable[[timedelta], str]) -> Callable[[datetime, datetime], Markup]:
    def tick(at: datetime, now: datetime) -> Markup:
        return Markup('<time class="num" data-{} datetime="{}">{}</time>').format(
            kind, at.isoformat(), told(now - at)
        )

    return tick


since = _ticking("since", elapsed)
"""How long ago something was. Our script lets it go on."""
until = _ticking("until", lambda time: elapsed(-time))
"""How long until something is. Our script counts it down."""
minutes = _ticking("minutes", lambda time: str(min(999, max(0, int(time / _SECOND)) // 60)))
"""How many minutes ago something was."""


def clock(at: datetime) -> Markup:
    """The time of day, in UTC; our script shows it in the reader's zone."""
    return Markup('<time class="num" data-clock datetime="{}">{}</time>').format(
        at.isoformat(), at.strftime("%H:%M:%S")
    )


def day(at: datetime) -> Markup:
    """The day and the time, in UTC; our script shows it in the reader's zone."""
    return Markup('<time class="num" data-day datetime="{}">{}</time>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M")
    )


def address(url: str) -> str:
    """A meeting's URL without its scheme and without what may be a password."""
    return url.split("://", 1)[-1].split("?", 1)[0]


def of_event(event: Event) -> str:
    """What happened, in words. The bot or the slot is the subject."""
    data = event.data
    if event.type == "bot.event":
        return f"reports {data['event']['type']}"
    if event.type in {"bot.noted", "slot.noted"}:
        return str(data["reason"])
    if event.type == "bot.status_changed":
        return STEPS[BotStatus(data["status"])]
    if "slotName" in data and data["slotName"] is not None:
        status = "in error" if data["status"] == SlotStatus.ERROR else data["status"]
        return f"{data['slotName']} is {status or 'deleted'}"
    return str(data["reason"])


STEPS = {
    BotStatus.PENDING: "is created",
    BotStatus.QUEUED: "waits in the queue",
    BotStatus.DEPLOYING: "gets a slot",
    BotStatus.JOINING_CALL: "joins the call",
    BotStatus.IN_WAITING_ROOM: "is in the waiting room",
    BotStatus.IN_CALL: "is in its call",
    BotStatus.LEAVING: "leaves",
    BotStatus.DONE: "is done",
    BotStatus.FATAL: "has failed",
    BotStatus.CANCELLED: "is cancelled",
}

_PLATFORM_NAME = re.compile(rf"(?<![\w./-])(?:{'|'.join(Platform)})(?![\w-]|\.\w)")


def of_need(need: Need) -> str:
    """What needs a person, with platforms as people call them."""
    return _PLATFORM_NAME.sub(lambda found: PLATFORMS[Platform(found[0])], need.sentence)


def mending(need: Need) -> str | None:
    """Where the dashboard does or shows what mends it: at the same path as the API, or near it."""
    action = need.action
    if action is None or action.path is None:
        return None
    path = action.path.removeprefix("/api/v1")
    if need.webhook_id is not None:
        return f"/settings{path}/resume" if action.method == "PATCH" else "/settings#webhooks"
    return "#queue" if path.startswith("/queue") else path


def of_diagnosis(diagnosis: Diagnosis) -> str:
    """How doctor's checks came out."""
    counts = diagnosis.counts
    told = [
        counted(counts[result], result)
        for result in (Result.PROBLEM, Result.WARNING)
        if counts[result]
    ]
    checks = counted(counts.total() - counts[Result.NOT_CHECKED], "check")
    return f"{' and '.join(told)} in {checks}" if told else f"{checks}, all well"


DIAGNOSIS_TONES = {
    Result.OK: "busy",
    Result.WARNING: "deploying",
    Result.PROBLEM: "error",
    Result.NOT_CHECKED: "idle",
}
"""The colour and the shape of what a check came to: those of slots."""


SLOT_STATUSES = {
    SlotStatus.IDLE: "idle, ready for the next bot",
    SlotStatus.DEPLOYING: "deploying",
    SlotStatus.BUSY: "busy",
    SlotStatus.RELEASING: "releasing: its container is being stopped",
    SlotStatus.ERROR: "error",
}

FILTERS: dict[str, Callable[..., object]] = {
    "platform": PLATFORMS.__getitem__,
    "duration": duration,
    "milliseconds": milliseconds,
    "since": since,
    "until": until,
    "minutes": minutes,
    "clock": clock,
    "day": day,
    "size": size,
    "address": address,
    "counted": counted,
    "pair": lambda text: (text, text),
    "flatten_group": lambda group: (group[0], group[1][0]),
}
