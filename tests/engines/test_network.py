"""A contributor's own Docker does not notice that others are tested beside it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from testbed.docker import need

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = """
import subprocess, sys
from testbed.network import leave_machine_network

def run(command):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout

def state():
    rules = [line for line in run("iptables-save").splitlines() if not line.startswith("#")]
    return run("ip -4 -oneline address"), run("ip route"), rules

leave_machine_network()
run("ip link add docker0 type bridge")
run("ip address add 172.17.0.1/16 dev docker0")
run("ip link set docker0 up")
run("iptables -P FORWARD ACCEPT")
before = state()
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], check=True)
assert state() == before, (before, state())
"""
"""Be a machine that has a docker0, and look at it before and after a process has run."""

ENGINES = """
import asyncio, pathlib, sys
from testbed.docker import docker_daemon, podman_service
from testbed.network import leave_machine_network

async def main(folder):
    async with docker_daemon(folder / "docker"), podman_service(folder / "podman"):
        pass

leave_machine_network()
asyncio.run(main(pathlib.Path(sys.argv[1])))
"""
"""Run engines as tests do."""


async def test_engines_under_test_leave_the_network_of_the_machine_as_it_is(folder: Path) -> None:
    need("dockerd", "ip", "iptables", "podman")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MACHINE, ENGINES, str(folder))
    )
    assert await process.wait() == 0
