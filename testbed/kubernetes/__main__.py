"""Run a cluster by hand until Ctrl-C: `python -m testbed.kubernetes`, as root."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
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
            over = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, over.set)
            await over.wait()


if __name__ == "__main__":
    leave_machine_network()
    asyncio.run(main())
