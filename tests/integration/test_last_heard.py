"""When a bot was last heard is told alike by the database and by the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.models.assignments import last_heard

if TYPE_CHECKING:
    from tests.support.scene import Scene


@pytest.mark.parametrize("newest", ["last_heartbeat", "started_at", "last_assigned_at"])
async def test_the_database_and_the_code_agree_on_when_a_bot_was_last_heard(
    scene: Scene, newest: str
) -> None:
    bot, slot = await scene.running()
    table, of = ("bot_pool_slots", slot.id) if newest == "last_assigned_at" else ("bots", bot.id)
    await scene.database.execute(
        f"UPDATE {table} SET {newest} = {newest} + interval '1 hour' WHERE id = $1", of
    )
    bot, slot = await scene.store.bots.get(bot.id), await scene.store.slots.get(slot.id)
    (row,) = await scene.database.fetch(
        "SELECT last_heard(b, s) FROM bots b, bot_pool_slots s WHERE s.assigned_bot_id = b.id"
    )
    expected = slot.last_assigned_at if table == "bot_pool_slots" else getattr(bot, newest)
    assert row[0] == last_heard(bot, slot) == expected
