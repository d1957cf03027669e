"""Structured logs: one line for each change of state, as JSON or, on a terminal, for people."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import TYPE_CHECKING, Literal, TextIO, cast

import orjson
import structlog

from botpool.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structlog.typing import EventDict, Processor

    from botpool.models.transitions import Transition

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

# What people look for first.
_FIRST = ("slot_name", "bot_id", "from", "to", "reason")


def configure_logs(
    level: str = "INFO",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Write log lines to a stream, by default standard error. `auto` is `console` on a terminal.

    Warnings and errors of libraries are written the same way, and so are Python's own warnings. If
    a line can't be written, it is lost, and nothing else happens.
    """
    stream = stream or _standard_error()
    least = logging.getLevelNamesMapping()[level]
    for_the_eye = style == "console" or (style == "auto" and stream.isatty())
    patient = _Patient(stream)
    structlog.configure(
        processors=[
            patient.with_lost,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_for_the_eye() if for_the_eye else _for_machines()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", patient)),
    )
    _take_over_libraries(least)


def _standard_error() -> TextIO:
    """Standard error without a buffer: a buffered line that failed would fail again at exit."""
    try:
        file = io.FileIO(sys.stderr.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # it is not a file, as in a test
        return sys.stderr
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", write_through=True)


class _Patient:
    """A stream whose errors are ignored: a full disk, a closed terminal, a broken pipe.

    The next line that can be written says how many lines were lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: we closed it
            self._lost += 1
        else:
            self._lost = 0

    def flush(self) -> None:
        """Do nothing: each line is flushed when it is written."""

    def with_lost(self, _: object, __: str, line: EventDict) -> EventDict:
        return {**line, "lost_lines": self._lost} if self._lost else line


def _for_machines() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]


def _for_the_eye() -> list[Processor]:
    # Not Rich's tracebacks: they show the values of variables, including secrets.
    plain = structlog.dev.plain_traceback
    return [_arranged, structlog.dev.ConsoleRenderer(sort_keys=False, exception_formatter=plain)]


def _arranged(_: object, __: str, line: EventDict) -> EventDict:
    """The line with the important keys first, and without empty ones."""
    keys = sorted(line, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    return {key: line[key] for key in keys if line[key] is not None and line[key] != {}}


def _json(line: object, **_: object) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # orjson refuses large numbers and invalid Unicode
        return json.dumps(line, default=str)


class _Libraries(logging.Handler):
    """Writes what libraries log in our format, with the name of the library."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _log.log(
                record.levelno,
                record.getMessage().strip(),
                logger=record.name,
                **({"exc_info": record.exc_info} if record.exc_info else {}),
            )
        except Exception:  # noqa: BLE001 - as every handler does: the library made the error
            self.handleError(record)


def _take_over_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler, _Libraries):
            root.removeHandler(handler)
    root.addHandler(_Libraries(max(level, logging.WARNING)))
    logging.captureWarnings(capture=True)


def log_failure(
    event: str, error: BaseException, level: int = logging.WARNING, /, **more: object
) -> None:
    """Log that something failed, and why.

    If the database can't be used, many things fail, and store/postgres/outage.py logs that once for
    all: then this is a line for debugging.
    """
    if isinstance(error, DatabaseUnreachable):
        level = logging.DEBUG
    _log.log(level, event, error=str(error) or type(error).__name__, **more)


def log_transitions(transitions: Iterable[Transition]) -> None:
    """Write one line for each transition, with the values of its row."""
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
