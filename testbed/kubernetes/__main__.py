"""Run a cluster by hand until Ctrl-C: `python -m testbed.kubernetes`, as root."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from testbed.docker import BOT_IMAGE, busybox_image
from testbed.kubernetes import joined
from testbed.network import leave_machine_network


async def main() -> None:
    """Say how to use it."""
    with tempfile.TemporaryDirectory(prefix="botpool-k8s-hand-") as folder:
        async with joined(Path(folder)) as cluster:
            image = await cluster.push(
                busybox_image(Path(folder) / "bot.tar", BOT_IMAGE), BOT_IMAGE.rpartition("/")[2]
            )
            # nothing else prints here
            print(f"export KUBECONFIG={cluster.kubeconfig}")
            print(f"image: {image}; pods reach this network at {cluster.address}")
            print(f"nsenter --target {os.getpid()} --net kubectl get nodes", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    leave_machine_network()
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
