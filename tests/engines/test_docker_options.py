"""What the container file gives to containers, on a real Docker and a real Podman."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil
import pytest

from botpool.errors import EngineRefused
from botpool.settings import Settings
from botpool.states import BotStatus
from botpool.store import connect
from testbed.docker import BOT_IMAGE, Daemon, busybox_image, load
from tests.support.docker_ground import ground
from tests.support.docker_scene import inspected, opened, spec, started, until_over
from tests.support.server import BOTS, MEET

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "correct-horse-battery-staple"  # noqa: S105 - that is what it is for

LOOKS_AROUND = r"""#!/bin/sh
busybox id -u
busybox mkdir /tmp/forbidden 2> /dev/null || echo "no mkdir"
busybox touch /tmp/allowed && echo "wrote to /tmp"
busybox touch /changed 2> /dev/null || echo "read-only"
busybox grep -E '^[a-z]+ /(dev/shm|tmp) ' /proc/mounts
cat /data/word
echo "$WORD"
ulimit -n
echo "$@"
"""

FORBIDS_MKDIR = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}


@pytest.fixture(params=["docker", "podman"])
def daemon(request: pytest.FixtureRequest) -> Daemon:
    """One after the other."""
    found: Daemon = request.getfixturevalue(request.param)
    return found


def container_file(folder: Path, keys: str) -> Path:
    """A container file with these keys for Docker, beside a profile that forbids `mkdir`."""
    (folder / "profile.json").write_text(json.dumps(FORBIDS_MKDIR))
    (folder / "data").mkdir()
    (folder / "data" / "word").write_text("from a volume\n")
    file = folder / "containers.toml"
    file.write_text(f'[all.env]\nWORD = "{SECRET}"\n[all.docker]\n{keys}')
    return file


async def test_a_container_has_what_its_options_say(daemon: Daemon, folder: Path) -> None:
    image = "botpool-test/looks:1"
    await load(daemon, busybox_image(folder / "looks.tar", image, script=LOOKS_AROUND))
    keys = f"""
user = 1234
security_opt = ["seccomp=profile.json"]
shm_size = "7MiB"
tmpfs = {{ "/tmp" = "size=3m,mode=1777" }}
volumes = ["{folder}/data:/data:ro"]
read_only = true
ulimits = {{ nofile = 333, nproc = 5000 }}
entrypoint = ["/bot"]
command = ["one", "two words"]
cap_drop = ["ALL"]
pids_limit = 50
memory = "64MiB"
labels = {{ team = "meetings" }}
"""
    settings = Settings(container_file=container_file(folder, keys), docker_network="host")
    async with opened(daemon, options=settings.docker_options) as engine:
        container = await started(
            engine, spec("looks", image=image, environment={"WORD": "a variable"})
        )
        await until_over(daemon, container.ref)
        lines = await engine.logs(container, 100)
        found = await inspected(daemon, container.ref)
    mounts = {line.split()[1]: line for line in lines if line.count(" ") > 3}
    assert [line for line in lines if line not in mounts.values()] == [
        *("1234", "no mkdir", "wrote to /tmp", "read-only"),
        *("from a volume", "a variable", "333", "one two words"),
    ]
    assert mounts["/dev/shm"].startswith(("shm /dev/shm tmpfs", "tmpfs /dev/shm tmpfs"))  # noqa: S108
    assert "size=7168k" in mounts["/dev/shm"]  # noqa: S108
    assert "size=3072k" in mounts["/tmp"]  # noqa: S108
    config = found["HostConfig"]
    assert (config["PidsLimit"], config["Memory"]) == (50, 2**26)
    assert found["Config"]["Labels"]["team"] == "meetings"
    assert found["Config"]["Labels"]["botpool.slot-name"] == "pool-zoom-007"


async def test_an_image_that_is_never_pulled_is_refused_without_asking_for_it(
    daemon: Daemon,
) -> None:
    missing = "127.0.0.1:1/missing:1"
    async with opened(daemon, never_pulled={BOT_IMAGE, missing}) as engine:
        assert not await engine.pull("a", BOT_IMAGE, print)
        with pytest.raises(EngineRefused, match=r"is not on a, and `docker\.pull` is `never`"):
            await engine.pull("a", missing, print)


async def test_a_secret_reaches_the_containers_of_its_platform_and_nothing_else(
    docker: Daemon, folder: Path, database_url: str
) -> None:
    """No log, answer, row of the database, command line, nor a container of another platform."""
    file = container_file(folder, f'user = "1234"\nvolumes = ["{folder}/data:/data:ro"]\n')
    file.write_text(file.read_text().replace("[all.env]", "[google-meet.env]"))
    settings = {"database_url": database_url, "container_file": str(file), "log_level": "DEBUG"}
    async with ground(docker, folder, **settings) as here:
        here.settings["image_zoom"] = here.image
        here.meeting.over.clear()
        async with here.serve() as serve:
            asked = [
                (await serve.client.post(BOTS, json={"meetingUrl": url})).json()["bot"]["id"]
                for url in (MEET, "https://zoom.us/j/1234567890")
            ]
            await here.meeting.until_joined(2)
            shown = {
                name.partition("-0")[0]: str(await inspected(docker, name))
                for name in await here.containers()
            }
            commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
            here.meeting.over.set()
            bots = await here.settled(asked)
            paths = [
                *("bots", "slots", "pool", "hosts", "queue", "replicas"),
                *(f"slots/{slot}/timeline" for slot in (1, 2)),
                *(f"bots/{bot}/{what}" for bot in asked for what in ("timeline", "logs")),
            ]
            answers = [await serve.client.get(f"/api/v1/{path}") for path in paths]
    assert {bot.status for bot in bots.values()} == {BotStatus.DONE}
    assert {name: SECRET in text for name, text in shown.items()} == {
        "pool-google-meet": True,
        "pool-zoom": False,
    }
    assert {answer.status_code for answer in answers} == {200}
    said = [*(answer.text for answer in answers), serve.log.read_text(), *serve.said]
    assert SECRET not in f"{said} {commands}"
    async with connect(database_url) as database:
        tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            rows = await database.fetch(f'SELECT t::text FROM "{table}" t')
            assert SECRET not in str(rows), table
