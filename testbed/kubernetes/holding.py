"""The process that runs a cluster, and does there what those ask for who have joined it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from testbed.kubernetes.parts import Parts
from testbed.network import leave_machine_network


async def hold(folder: Path, programs: Path, users: Path, nodes: int) -> None:
    """Run a cluster until it is asked to end, or until nobody holds the lock `users` any more.

    It can be used once `folder/ready` is there.
    """
    parts = Parts(folder, programs)
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        try:
            told: dict[str, Any] = {"result": await getattr(parts, asked["do"])(*asked["with"])}
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            told = {"error": repr(error)}
        writer.write(json.dumps(told).encode() + b"\n")
        await writer.drain()
        writer.close()
        if asked["do"] == "end":
            over.set()

    with users.open("w") as lock:
        try:
            await parts.start(nodes)
            async with await asyncio.start_unix_server(answer, folder / "control.sock"):
                (folder / "ready").touch()
                while not over.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), 1)
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        over.set()
        finally:
            await parts.end()
            shutil.rmtree(folder)


def main() -> None:
    """`python -m testbed.kubernetes.holding FOLDER PROGRAMS USERS NODES`, as `joining` does."""
    leave_machine_network()
    folder, programs, users, nodes = sys.argv[1:]
    asyncio.run(hold(Path(folder), Path(programs), Path(users), int(nodes)))


if __name__ == "__main__":
    main()
