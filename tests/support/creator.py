"""One of several processes that create bots at once. Run by test_race.py."""

from __future__ import annotations

import asyncio
import json
import sys

from botpool.logs import configure_logs
from botpool.pool import Pool
from botpool.settings import load_settings
from botpool.states import Platform
from botpool.store import Store, open_database
from tests.support.scene import new_bot


async def main(*creations: str) -> None:
    """Wait for a line on standard input, create bots (platform=count …), print what they got."""
    settings = load_settings()
    configure_logs("WARNING")
    async with open_database(settings) as database:
        store = Store(database)
        pool = Pool(store, settings)
        await store.pools.numbers()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        bots = [
            new_bot(Platform(platform))
            for platform, _, count in (creation.partition("=") for creation in creations)
            for _ in range(int(count))
        ]
        created = await asyncio.gather(*(pool.creation.create_bot(bot) for bot in bots))
    for one in created:
        row = [one.bot.platform, one.bot.slot_name, one.queue_position]
        sys.stdout.write(json.dumps(row) + "\n")


asyncio.run(main(*sys.argv[1:]))
