"""What commands print: tables, lines and JSON.

On a terminal tables fit its width, and words have colours. Elsewhere each row is one line, as long
as it has to be, without escape codes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from botpool.cli.exits import Exit
from botpool.quantities import elapsed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from rich.console import Console, RenderableType
    from rich.text import Text

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON, with the names that the API has.")
]

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PIPE_LOOK_SECONDS = 0.5


class Styled(NamedTuple):
    """A text, and its style on a terminal."""

    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. What folds may be long: on a narrow terminal it stands below its row."""

    name: str
    right: bool = False
    folds: bool = False


Cell = str | Styled
Row = Sequence[Cell]

STYLES = {
    **dict.fromkeys(("idle", "DONE", "healthy", "delivered", "present", "ok"), "green"),
    **dict.fromkeys(("busy", "IN_CALL"), "bold green"),
    **dict.fromkeys(("deploying", "DEPLOYING", "JOINING_CALL", "IN_WAITING_ROOM"), "cyan"),
    **dict.fromkeys(("releasing", "LEAVING", "QUEUED", "PENDING", "open", "pulling"), "yellow"),
    **dict.fromkeys(("error", "FATAL", "unhealthy", "away", "given_up", "failed"), "bold red"),
    "CANCELLED": "dim",
}
"""How statuses look on a terminal."""


def say(line: str = "") -> None:
    """Print a line at once."""
    _write(f"{line}\n")


def hint(line: str) -> None:
    """Print a line for people, beside what is printed for programs."""
    typer.echo(line, err=True)


def print_json(found: object) -> None:
    """Print JSON to read."""
    say(json.dumps(found, indent=2, ensure_ascii=False))


def print_json_line(found: object) -> None:
    """Print JSON in one line, for a reader of many."""
    say(json.dumps(found, ensure_ascii=False))


def print_table(columns: Sequence[Column], rows: Iterable[Row], nothing: str) -> None:
    """Print a table, or a line that says that there is nothing.

    On a terminal that is too narrow for it, the columns that fold stand below each row, as long as
    they are: the terminal breaks them, and a URL can still be copied.
    """
    found = [*rows]
    if not found:
        say(nothing)
        return
    lines = plain_table(columns, found)
    if not on_terminal():
        for line in lines:
            say(line)
        return
    below = terminal().width < max(map(len, lines)) and any(column.folds for column in columns)
    print_rich(*rich_lines(columns, found, below=below))


def tell_of_more(page: Mapping[str, Any]) -> None:
    """Tell how to see the rest of a list, if there is more."""
    if page["nextCursor"] is not None:
        hint(f"There are more: --limit shows more, or --cursor {page['nextCursor']} the next ones.")


def print_facts(facts: Iterable[tuple[str, Cell | None]]) -> None:
    """Print what is known about one thing: a name and a value on each line; `None` is left out."""
    shown = [(name, value) for name, value in facts if value not in {None, ""}]
    width = max(len(name) for name, _ in shown)
    if on_terminal():
        from rich.text import Text  # noqa: PLC0415 - takes long

        print_rich(
            *(
                Text.assemble((f"{name.ljust(width)}  ", "bold"), _rich(value or ""))
                for name, value in shown
            )
        )
        return
    for name, value in shown:
        say(f"{name.ljust(width)}  {plain(value or '')}")


def on_terminal() -> bool:
    """Whether a person reads what is printed."""
    return sys.stdout.isatty()


def print_rich(*parts: RenderableType) -> None:
    """Print what Rich makes, on a terminal, which breaks lines that are too long for it."""
    screen = terminal()
    with screen.capture() as captured:
        for part in parts:
            screen.print(part, soft_wrap=True)
    _write(captured.get())


def terminal() -> Console:
    """The terminal. NO_COLOR and TERM=dumb leave out what they should."""
    from rich.console import Console  # noqa: PLC0415 - takes long

    return Console(highlight=False, emoji=False, markup=False)


def rich_lines(
    columns: Sequence[Column], rows: Sequence[Row], *, below: bool = False
) -> list[Text]:
    """The lines of a table for a terminal, with what folds beside the rest, or below it."""
    from rich.text import Text  # noqa: PLC0415 - takes long

    beside = [n for n, column in enumerate(columns) if not (below and column.folds)]
    head = tuple(Styled(column.name, "bold") for column in columns)
    widths = [max(len(plain(row[n])) for row in (head, *rows)) for n in beside]
    lines = []
    for row in (head, *rows):
        line = Text(no_wrap=True)
        for n, width in zip(beside, widths, strict=True):
            cell = _rich(row[n])
            padding = " " * (width - len(cell))
            line.append_text(Text(padding) + cell if columns[n].right else cell + Text(padding))
            line.append("  ")
        line.rstrip()
        lines.append(line)
        rest = [plain(row[n]) for n in range(len(columns)) if n not in beside]
        if row is not head and any(rest):
            lines.append(Text(" " * (widths[0] + 2) + "  ".join(filter(None, rest))))
    return lines


def plain_table(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """The lines of a table, one for each row."""
    lines = [[column.name for column in columns], *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def _rich(cell: Cell) -> Text:
    from rich.text import Text  # noqa: PLC0415 - takes long

    # As plain text: it may look like Rich's markup.
    return Text(plain(cell), cell.style if isinstance(cell, Styled) else "")


def plain(cell: Cell) -> str:
    """A text in one line, without what would steer a terminal."""
    text = cell.text if isinstance(cell, Styled) else cell
    return " ".join(without_control(text).split())


def without_control(text: str) -> str:
    """A text without escape codes and other control characters: whoever wrote it is not trusted."""
    return _CONTROL.sub("", text)


def status_cell(status: str | None) -> Styled:
    """A status in its colour."""
    return Styled(status or "", STYLES.get(status or "", ""))


def host_cell(host: dict[str, Any]) -> Styled:
    """What keeps new bots off a host, or that it is healthy."""
    if host["drainedAt"]:
        return Styled("drained", "yellow")
    return status_cell(host["status"] if host["open"] else "away")


def time_of(text: str | None) -> datetime | None:
    """A time of the API, in the zone of this machine."""
    return None if text is None else datetime.fromisoformat(text).astimezone()


def age(text: str | None) -> str:
    """How long ago a time of the API was."""
    at = time_of(text)
    return "" if at is None else elapsed(datetime.now(UTC) - at)


def moment(text: str | None) -> str | None:
    """A time of the API in full, and how long ago it was."""
    at = time_of(text)
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%S %Z} ({age(text)} ago)"


def clock(text: str) -> str:
    """The time of day of a time of the API."""
    return f"{time_of(text):%H:%M:%S}"


def flush() -> None:
    """Write out what is left. Ends the process if nobody reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _nobody_reads()


@asynccontextmanager
async def while_read() -> AsyncIterator[None]:
    """End the block, and the process, when what reads the output has ended, as `head` does."""
    body = asyncio.current_task()
    looking = asyncio.create_task(_until_unread())
    unread = False

    def end(_: asyncio.Task[None]) -> None:
        nonlocal unread
        if not looking.cancelled() and body is not None:
            unread = True
            body.cancel()

    looking.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        if unread:
            _nobody_reads()
        raise
    finally:
        looking.remove_done_callback(end)
        looking.cancel()


async def _until_unread() -> None:
    output = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(output).st_mode):
        await asyncio.Event().wait()
    poll = select.poll()
    poll.register(output, 0)
    while not poll.poll(0):  # noqa: ASYNC110 - nothing else tells of it
        await asyncio.sleep(_PIPE_LOOK_SECONDS)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _nobody_reads()


def _nobody_reads() -> NoReturn:
    # What Python still has to write at the end goes nowhere, without a complaint.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(Exit.PIPE_CLOSED)
