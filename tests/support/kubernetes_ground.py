"""A `botpool serve` on a real cluster, whose bots, in pods, go to a meeting of the test."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from botpool.states import BOT_ENDED, SlotStatus
from botpool.store import Store, connect
from botpool.store.invariants import broken_invariants
from testbed.docker import busybox_image
from tests.support.docker_ground import free_port
from tests.support.docker_scene import web_server
from tests.support.kubernetes_engine import ROOT, RULES
from tests.support.meeting import BOT, Meeting
from tests.support.server import BOTS, MEET, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.store import Database
    from testbed.kubernetes import Cluster
    from tests.support.server import Serve

ZOOM = "https://zoom.us/j/123456789"
TEAMS = "https://teams.microsoft.com/meet/2123456789012"
PATIENCE = 0.1


@dataclass(frozen=True)
class Ground:
    """A botpool that serves, the namespace of its bots, and the meeting that they go to."""

    cluster: Cluster
    namespace: str
    meeting: Meeting
    serve: Serve
    database: Database

    @property
    def store(self) -> Store:
        return Store(self.database)

    async def ask(self, meeting_url: str = MEET, **body: Any) -> int:
        """Ask for a bot. Its id."""
        answer = await self.serve.client.post(BOTS, json={"meetingUrl": meeting_url, **body})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["bot"]["id"])

    async def in_meeting(self, *bots: int) -> None:
        """Wait until these bots are in the meeting."""
        await self.meeting.until(lambda: all(self.meeting.present[bot] for bot in bots))

    async def ended(self, bot_id: int) -> Bot:
        """A bot, once it has ended."""
        while (bot := await self.store.bots.get(bot_id)).status not in BOT_ENDED:
            await asyncio.sleep(PATIENCE)
        return bot

    async def slot_of(self, bot_id: int) -> Slot:
        slot = await self.store.slots.of_bot(bot_id)
        assert slot is not None
        return slot

    async def until_slot(self, slot_id: int, fits: Callable[[Slot | None], bool]) -> None:
        """Wait until a slot, None if it was deleted, is as it should be."""
        while not fits(await self.store.slots.find(slot_id)):
            await asyncio.sleep(PATIENCE)

    async def why_deleted(self, slot_id: int) -> str:
        """The reason with which a slot was deleted, once it is."""
        while not (
            rows := await self.database.fetch(
                "SELECT reason FROM transitions"
                " WHERE slot_id = $1 AND machine = 'slot' AND to_status IS NULL",
                slot_id,
            )
        ):
            await asyncio.sleep(PATIENCE)
        reason: str = rows[0]["reason"]
        return reason

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}{'/' if name else ''}{name}"

    async def objects(self, kind: str = "pods") -> dict[str, dict[str, Any]]:
        """What botpool has made of a kind for bots, by name."""
        chosen = {"labelSelector": "app.kubernetes.io/name=botpool-bot"}
        answer = await self.cluster.api.get(self.path(kind), params=chosen)
        return {each["metadata"]["name"]: each for each in answer.json()["items"]}

    async def token(self, slot: Slot) -> str:
        """The token that the bot of a slot shows."""
        answer = await self.cluster.api.get(self.path("secrets", slot.container_ref or ""))
        return base64.b64decode(answer.json()["data"]["BOTPOOL_SLOT_TOKEN"]).decode()

    async def at_rest(self, *, but: Collection[str] = ()) -> None:
        """Wait until every slot is idle and nothing else is left: no pod, no Secret, no process.

        The containers in `but` are not waited for.
        """
        while True:
            slots = [each for each in await self.store.slots.all() if each.container_ref not in but]
            left = {*await self.objects(), *await self.objects("secrets")} - {*but}
            if (
                all(slot.status is SlotStatus.IDLE for slot in slots)
                and {*await self.objects()} <= {*but}
                and left == {slot.container_ref for slot in slots}
            ):
                break
            await asyncio.sleep(PATIENCE)
        assert not processes(*self.meeting.starts)


def processes(*containers: str) -> list[psutil.Process]:
    """What runs of containers on this machine, whatever the cluster says of them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            of_ours = process.environ().get("POOL_SLOT_UUID") in containers
            if of_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@asynccontextmanager
async def ground(
    cluster: Cluster,
    folder: Path,
    database_url: str,
    *,
    templates: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: str,
) -> AsyncIterator[Ground]:
    """A botpool with these settings; its bots stay in the meeting until that is over.

    `templates` has the pod templates of platforms that differ from the others.
    """
    meeting = Meeting()
    meeting.over.clear()
    folder.mkdir(exist_ok=True)
    async with (
        cluster.namespace() as namespace,
        web_server(
            meeting.app(), host=cluster.address, handler_cancellation=True, shutdown_timeout=1
        ) as address,
        connect(database_url) as database,
    ):
        name = f"meeting:{address.rpartition(':')[2]}"
        script = BOT.replace("MEETING", address)
        image = await cluster.push(busybox_image(folder / "bot.tar", name, script=script), name)
        url = f"http://{cluster.address}:{(port := free_port())}"
        common = {
            "container_file": str(_container_file(folder, templates or {})),
            "database_url": database_url,
            "deploy_poll_interval_ms": "500",
            "engine": "kubernetes",
            "heartbeat_freshness_ms": "6000",
            "host": cluster.address,
            "image_google_meet": image,
            "kubernetes_clusters": f"a={await cluster.kubeconfig_of(namespace, RULES)}",
            "poll_interval_ms": "200",
            "port": str(port),
            "public_url": url,
            "pull_ahead": "false",
            "recovery_interval_ms": "500",
            "relaunch_wait_ms": "0",
            "stop_grace_ms": "2000",
            "sync_interval_ms": "500",
        }
        async with served(folder, **{**common, **settings}) as serve:
            yield Ground(cluster, namespace, meeting, serve, database)
            assert await broken_invariants(database) == []
        meeting.over.set()


def _container_file(folder: Path, templates: Mapping[str, Mapping[str, Any]]) -> Path:
    tables = []
    for table, template in {"all": ROOT, **templates}.items():
        (folder / f"{table}.json").write_text(json.dumps(template))
        tables.append(f'[{table}.kubernetes]\npod_template = "{table}.json"\n')
    path = folder / "containers.toml"
    path.write_text("".join(tables))
    return path
