"""Structured logs: one line a change of state, as JSON or, on a terminal, for the eye."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal, TextIO

import orjson
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from botpool.models import Transition

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


def configure_logs(
    level: str = "INFO",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send log lines to a stream, or standard error. `auto`: for the eye if it is a terminal."""
    stream = stream or sys.stderr
    for_the_eye = style == "console" or (style == "auto" and stream.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer()
            if for_the_eye
            else structlog.processors.JSONRenderer(_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def _json(line: object, **_: object) -> str:
    return orjson.dumps(line, default=str).decode()


def log_transitions(transitions: Iterable[Transition]) -> None:
    """Write one line for each transition, as its row in the database says it."""
    log = _log.bind()
    for transition in transitions:
        log.info(
            "transition",
            id=transition.id,
            machine=transition.machine,
            platform=transition.platform,
            slot_id=transition.slot_id,
            slot_name=transition.slot_name,
            container_ref=transition.container_ref,
            lease=transition.lease,
            bot_id=transition.bot_id,
            correlation_id=transition.correlation_id,
            reason=transition.reason,
            **{"from": transition.from_status, "to": transition.to_status},
            details=transition.details,
        )
