"""The JSON that goes over the wire, in camelCase. It accepts snake_case, but no unknown fields."""

from __future__ import annotations

import re
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from botpool.errors import InvalidRequest
from botpool.meetings import PLATFORM_NAMES
from botpool.states import (
    BOT_MAY_BLAME,
    BOT_MAY_SAY,
    PLATFORM_ALIASES,
    BotStatus,
    FailureCause,
    Platform,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Lease = Annotated[
    int,
    Field(strict=True, ge=1, le=2**63 - 1, description="The lease that the claim returned."),
]


PlatformName = Annotated[
    Platform,
    BeforeValidator(
        lambda name: PLATFORM_ALIASES.get(name, name) if isinstance(name, str) else name
    ),
    WithJsonSchema({"type": "string", "enum": list(PLATFORM_NAMES)}),
]
"""A platform by any of its names."""


MOST_EVENT_BYTES = 16384
"""Thousands of a bot's events are kept, and many are told in one answer."""

_NUMBER = re.compile(r"[\s+-]*[\d.]+(?:[eE][+-]?\d+)?\s*")


def _no_number(value: object) -> object:
    """Refuse numbers, which would else be taken for seconds since 1970."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        raise ValueError("must be a date and a time with its zone, such as 2026-01-01T00:00:00Z")
    return value


NO_NUMBER = BeforeValidator(_no_number)
"""Lets a time be written as RFC 3339 has it, and not as a number."""

Moment = Annotated[AwareDatetime, NO_NUMBER]
"""A time with its zone, outside of a body."""

_DEEPEST = 100
_MOST_UNKNOWN = 10


def _kept(value: Any) -> Any:
    """Refuse values that are valid JSON but that the database can't store."""
    found, depth = [value], 0
    while found:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"must not be nested more than {_DEEPEST} levels deep")
        # Kind by kind: a body may have hundreds of thousands of values, and nothing else is done
        # while they are looked at.
        kinds: dict[type, list[Any]] = {
            kind: [each for each in found if type(each) is kind] for kind in {*map(type, found)}
        }
        for kind, fit, refusal in _FITTING:
            if kind in kinds and not fit(kinds[kind]):
                raise ValueError(refusal)
        found = [*chain.from_iterable(kinds.get(list, ()))]
        for each in kinds.get(dict, ()):
            found += each
            found += each.values()
    return value


def is_text(text: str) -> bool:
    """Whether the database can store a text."""
    return _are_texts([text])


def _are_texts(texts: Sequence[str]) -> bool:
    try:
        return b"\0" not in "".join(texts).encode()
    except UnicodeEncodeError:
        return False


def _are_integers(numbers: Sequence[int]) -> bool:
    return min(numbers) >= -(2**63) and max(numbers) < 2**64


def _are_numbers(numbers: Sequence[float]) -> bool:
    return all(map(isfinite, numbers))


_FITTING: tuple[tuple[type, Callable[[Sequence[Any]], bool], str], ...] = (
    (str, _are_texts, "must not contain NUL (\\u0000) or half of a surrogate pair"),
    (int, _are_integers, "must not contain an integer of more than 64 bits"),
    (float, _are_numbers, "must not contain NaN, or a number that is infinite or too large"),
)


def check_size(name: str, value: Mapping[str, Any], most: int) -> None:
    """Raise `InvalidRequest` if a field has more bytes than that, as JSON without white space."""
    size = len(orjson.dumps(value))
    if size > most:
        error = InvalidRequest(
            f"{name}: must not have more than {most} bytes as JSON; it has {size}."
        )
        error.field = name
        raise error


Text = Annotated[str, BeforeValidator(_kept)]
"""A text, outside of a body, that the database can store."""


class Wire(BaseModel):
    """The body of a request or an answer."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        # An answer has all of its fields.
        json_schema_serialization_defaults_required=True,
    )


class Asked(Wire):
    """The body of a request. The database can store every value in it."""

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any) -> Any:
        """Refuse many unknown fields at once: to tell of each takes long."""
        if isinstance(value, dict) and len(value) > 2 * len(cls.model_fields) + _MOST_UNKNOWN:
            raise ValueError(f"has {len(value)} fields, of which most are unknown")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _check_kept(cls, value: Any) -> Any:
        return _kept(value)


class ClaimRequest(Asked):
    """Empty: the slot's token says which bot it is."""


class Claimed(Wire):
    """The bot that a container runs."""

    bot_id: int
    lease: Lease
    correlation_id: str
    meeting_url: str
    bot_display_name: str
    platform: Platform
    config: dict[str, Any]
    heartbeat_interval_ms: int
    max_silence_ms: int


class HeartbeatRequest(Asked):
    """A sign that the bot is alive."""

    lease: Lease


class HeartbeatAnswer(Wire):
    """What the bot should do now."""

    action: Literal["continue", "leave"]
    log_level: str


class BotEventIn(Asked):
    """Something that happened in the call, such as a participant who joined."""

    type: str = Field(min_length=1, max_length=100, pattern=r"^[\w.:-]+$")
    data: dict[str, Any] = Field(
        default_factory=dict, description=f"At most {MOST_EVENT_BYTES} bytes as JSON."
    )

    @field_validator("data")
    @classmethod
    def _check_size(cls, data: dict[str, Any]) -> dict[str, Any]:
        if len(orjson.dumps(data)) > MOST_EVENT_BYTES:
            raise ValueError(f"must have at most {MOST_EVENT_BYTES} bytes as JSON")
        return data


class EventsRequest(Asked):
    """What happened in a bot's call."""

    lease: Lease
    events: list[BotEventIn] = Field(min_length=1, max_length=100)


class LogLineIn(Asked):
    """A line of a bot's log."""

    line: str = Field(max_length=4000)
    level: Literal["debug", "info", "warning", "error"] = "info"


class LogsRequest(Asked):
    """Lines of a bot's log."""

    lease: Lease
    lines: list[LogLineIn] = Field(min_length=1, max_length=500)


class StatusRequest(Asked):
    """How far a bot has come."""

    lease: Lease
    status: Annotated[BotStatus, WithJsonSchema({"type": "string", "enum": sorted(BOT_MAY_SAY)})]
    reason: str | None = Field(default=None, max_length=1000, description="The reason, for people.")
    cause: Annotated[
        FailureCause | None,
        WithJsonSchema(
            {"anyOf": [{"type": "string", "enum": sorted(BOT_MAY_BLAME)}, {"type": "null"}]}
        ),
    ] = Field(
        default=None,
        description="Why the bot is `FATAL`, for programs. By default `bot_failed`.",
    )


class FieldProblem(BaseModel):
    """What is wrong with one field of a request."""

    pointer: str = Field(
        description="Where it is: a JSON pointer into the body, such as `#/meetingUrl`, or the"
        " name of a parameter, such as `query:limit`, `header:Idempotency-Key` or `path:botId`."
    )
    code: str = Field(description="For programs, such as `required` or `out_of_bounds`.")
    detail: str = Field(description="For people.")


class Problem(BaseModel):
    """What went wrong, as RFC 9457 defines it. The meaning of a `code` never changes."""

    type: str = Field(description="Always `about:blank`: the `code` says more.")
    title: str
    status: int
    code: str = Field(description="For programs, such as `bot_not_found`.")
    detail: str = Field(description="For people.")
    errors: list[FieldProblem] = Field(
        default=[], description="With 422: every field that is wrong, if fields are."
    )
    bot_id: int | None = Field(
        default=None,
        serialization_alias="botId",
        description="With `duplicate_bot`: the live bot that has the deduplication key.",
    )
    action: Literal["exit"] | None = Field(
        default=None, description="With `assignment_ended`: what a container does now."
    )
