"""The pages of docs/ that are made from the code, so that they can't say anything else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from botpool.settings import Settings
from botpool.states import (
    BOT_ENDED,
    BOT_HOLDS_SLOT,
    BOT_RELAUNCHABLE,
    BOT_STEPS,
    SLOT_HOLDS_BOT,
    SLOT_STEPS,
    BotStatus,
    FailureCause,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Status = TypeVar("Status", bound=str)

FOLDER = Path(__file__).parent

_MADE = "<!-- Made from the code by `make docs`. -->"

# What a reader wants to know of each, beside the table.
_CAUSES = {
    FailureCause.QUEUE_TIMEOUT: "no slot became free before the bot's queue deadline",
    FailureCause.IMAGE_PULL: "the image could not be brought to the host",
    FailureCause.ENGINE: "the engine failed, or refused",
    FailureCause.START_TIMEOUT: "the container did not come up in time",
    FailureCause.CRASHED: "the container ended by itself before the bot did",
    FailureCause.HEARTBEAT_LOST: "the bot was not heard for too long",
    FailureCause.LEFT_BY_HOST: "the host of the meeting sent the bot away",
    FailureCause.NOT_ADMITTED: "nobody let the bot into the call",
    FailureCause.BOT_FAILED: "the bot said that it failed, of whatever else",
}


def _diagram(steps: Mapping[Status | None, Iterable[Status | None]]) -> str:
    lines = [
        f"    {source or '[*]'} --> {target or '[*]'}"
        for source, targets in steps.items()
        for target in sorted(targets, key=str)
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _matrix(steps: Mapping[Status | None, Iterable[Status | None]]) -> str:
    """Every pair: which step there is, and which there isn't."""
    statuses = [status for status in steps if status]
    header = f"| from ╲ to | {' | '.join(statuses)} |"
    rule = f"|---|{'---|' * len(statuses)}"
    rows = [
        f"| {source or '(new)'} | "
        + " | ".join("●" if target in targets else "" for target in statuses)
        + " |"
        for source, targets in ((source, set(targets)) for source, targets in steps.items())
    ]
    return "\n".join([header, rule, *rows])


def _names(statuses: Iterable[str]) -> str:
    order = [*BotStatus]
    found = set(statuses)
    if found <= {*order}:
        return ", ".join(f"`{status}`" for status in order if status in found)
    return ", ".join(f"`{status}`" for status in sorted(found))


def states() -> str:
    """Both state machines."""
    causes = "\n".join(f"| `{cause}` | {meaning} |" for cause, meaning in _CAUSES.items())
    return f"""{_MADE}
# States

Every status of slots and bots, and every step from one to another. The same table,
[`states.py`](../../src/botpool/states.py), makes this page, the pool's guards, and the triggers by
which the database refuses any other step, whoever asks for it.

## Slot

A slot has a bot in {_names(SLOT_HOLDS_BOT)}, and in no other status. `releasing` means that the bot
is over but its container is not yet proved stopped; a slot is `idle` only when it is. A slot that
becomes `idle` goes to the first bot that waits in the same transaction.

{_diagram(SLOT_STEPS)}

{_matrix(SLOT_STEPS)}

## Bot

A bot has a slot in {_names(BOT_HOLDS_SLOT)}. It may skip steps forward, and never goes back by its
own word: the one way back, from {_names(BOT_RELAUNCHABLE)}, is another launch under a new lease.
From `IN_CALL` only a bot goes back that was asked for with `relaunchInCall`. In
{_names(BOT_ENDED)} it has ended and never changes again; after the retention it is forgotten.

{_diagram(BOT_STEPS)}

{_matrix(BOT_STEPS)}

## Why a bot is `FATAL`

Its `failureCause` is one of these; the evidence stands in `failureReason`.

| cause | meaning |
|---|---|
{causes}
"""


def settings() -> str:
    """Every setting."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = f"`{default}`" if field.default_factory is None and default is not None else ""
        if name == "data_dir":
            shown = "the user's data folder"
        other = f" (or `{name.upper()}`)" if field.validation_alias is not None else ""
        rows.append(f"| `BOTPOOL_{name.upper()}`{other} | {shown} | {field.description} |")
    return f"""{_MADE}
# Settings

Environment variables. A value that can't be used is named in one sentence, with exit code 2.

| variable | default | meaning |
|---|---|---|
{chr(10).join(rows)}
"""


PAGES = {
    FOLDER / "concepts" / "states.md": states,
    FOLDER / "reference" / "settings.md": settings,
}
