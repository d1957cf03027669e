"""A reconciler in a process of its own: `worker`, until SIGTERM, or `worker <checkpoint>`.

With a checkpoint it does what is due now, and is killed for real when it comes there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from botpool.engines import make_engines
from botpool.logs import configure_logs
from botpool.pool import Pool
from botpool.reconciler import Checkpoint, Reconciler
from botpool.settings import load_settings
from botpool.store import Store, open_database


async def main(checkpoint: Checkpoint | None) -> None:
    def reached(here: Checkpoint) -> None:
        if here is checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = load_settings()
    configure_logs(settings.log_level, "json")
    async with open_database(settings) as database:
        store = Store(database)
        installation = await store.installation.name()
        engines = make_engines(settings, installation)
        reconciler = Reconciler(
            store,
            Pool(store, settings),
            engines,
            settings,
            installation=installation,
            reached=reached,
        )
        if checkpoint is not None:
            await reconciler.run_once()
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reconciler.stop)
        print("works", flush=True)
        await reconciler.run(database)
        for engine in engines.values():
            await engine.close()


if __name__ == "__main__":
    asyncio.run(main(Checkpoint(sys.argv[1]) if sys.argv[1:] else None))
