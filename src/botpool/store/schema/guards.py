"""What the database gets from the code: the guards of both state machines, and slot names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from botpool.models.slots import SLOT_NAME_DIGITS, SLOT_NAME_PREFIX
from botpool.states import (
    BOT_HOLDS_SLOT,
    BOT_STEPS,
    SLOT_NEEDS_WORK,
    SLOT_STEPS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

Status = TypeVar("Status", bound=str)


def _literals(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


def _step_triggers(table: str, steps: Mapping[Status | None, AbstractSet[Status | None]]) -> str:
    """Triggers on `table` that refuse every step that isn't in `steps`.

    The list is in the trigger's WHEN, so an allowed step costs no call. It is one constant, because
    PostgreSQL parses the condition with every statement.
    """
    first = _literals(status for status in steps[None] if status)
    last = _literals(status for status, targets in steps.items() if status and None in targets)
    pairs = ", ".join(
        f"{source} {target}"
        for source, targets in steps.items()
        for target in sorted(status for status in targets if status)
        if source
    )
    return f"""
CREATE OR REPLACE TRIGGER {table}_first_step BEFORE INSERT ON {table}
    FOR EACH ROW WHEN (NEW.status NOT IN ({first}))
    EXECUTE FUNCTION refuse_step();
CREATE OR REPLACE TRIGGER {table}_step BEFORE UPDATE OF status ON {table}
    FOR EACH ROW WHEN (
        OLD.status <> NEW.status AND OLD.status || ' ' || NEW.status <> ALL ('{{{pairs}}}'::text[])
    )
    EXECUTE FUNCTION refuse_step();
CREATE OR REPLACE TRIGGER {table}_last_step BEFORE DELETE ON {table}
    FOR EACH ROW WHEN (OLD.status NOT IN ({last}))
    EXECUTE FUNCTION refuse_step();
"""


def guards() -> str:
    """The statements that put the guards of both state machines into the database."""
    return f"""
CREATE OR REPLACE FUNCTION bot_holds_slot() RETURNS text[] LANGUAGE sql IMMUTABLE
    AS $$ SELECT ARRAY[{_literals(BOT_HOLDS_SLOT)}] $$;
CREATE OR REPLACE FUNCTION slot_needs_work(p_status text) RETURNS boolean LANGUAGE sql IMMUTABLE
    AS $$ SELECT p_status IN ({_literals(SLOT_NEEDS_WORK)}) $$;
CREATE OR REPLACE FUNCTION slot_name(p_platform text, p_number integer) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
    SELECT format(
        '{SLOT_NAME_PREFIX}-%s-%s', p_platform,
        lpad(p_number::text, greatest({SLOT_NAME_DIGITS}, length(p_number::text)), '0')
    )
$$;
{_step_triggers("bot_pool_slots", SLOT_STEPS)}
{_step_triggers("bots", BOT_STEPS)}
"""
