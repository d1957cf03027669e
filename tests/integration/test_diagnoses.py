"""What doctor finds is kept by a worker: on request and now and then, never two at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from botpool.access.keys import Keys
from botpool.doctor import Finding, Result, Rounds
from botpool.models.replicas import ReplicaRole
from botpool.settings import Settings
from botpool.states import Role
from tests.integration.test_bots_api import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.store import Database
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

LIMIT = Finding(
    check="room", engine="docker", result=Result.WARNING, found="3 fit", mend="Add hosts."
)
AWAY = Finding(check="database", engine=None, result=Result.PROBLEM, found="away", mend="Start it.")
WELL = Finding(check="schema", engine=None, result=Result.OK, found="Up to date")


class Doctor:
    """A doctor that finds what it is told to, when it is let."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        self.examined = 0
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> Sequence[Finding]:
        self.examined += 1
        self.began.set()
        await self.may_end.wait()
        return self.findings


async def rounds(scene: Scene, doctor: Doctor, replica: str = "one") -> Rounds:
    await scene.store.replicas.seen(replica, ReplicaRole.WORKER, "1", "here")
    return Rounds(scene.store, scene.pool, replica, examine=doctor)


async def test_what_was_asked_for_is_made_kept_and_told(scene: Scene) -> None:
    one = await rounds(scene, Doctor(LIMIT, AWAY, WELL))
    await scene.pool.diagnoses.ask(by="ops")
    assert (await scene.store.diagnoses.newest()).asked_by == "ops"
    assert await one.look(only_asked=True)
    newest = await scene.store.diagnoses.newest()
    assert newest.findings == [LIMIT, AWAY, WELL]
    assert (newest.made_by, newest.asked_at, newest.begun_at) == ("one", None, None)
    (told,) = await scene.database.fetch("SELECT * FROM transitions WHERE machine = 'doctor'")
    assert told["to_status"] == "problem"
    assert told["details"] == {"problems": 1, "warnings": 1, "by": "ops"}
    assert not await one.look()


async def test_however_many_replicas_look_one_examines(scene: Scene) -> None:
    doctor = Doctor(WELL)
    doctor.may_end.clear()
    one, two = await rounds(scene, doctor), await rounds(scene, doctor, "two")
    making = asyncio.create_task(one.look())
    await doctor.began.wait()
    assert (await scene.store.diagnoses.newest()).begun_at is not None
    assert not await two.look()
    # Asked for since it began: it is no answer to that.
    await scene.pass_time(seconds=1)
    await scene.pool.diagnoses.ask(by="ops")
    assert not await two.look()
    doctor.may_end.set()
    assert await making
    assert (await scene.store.diagnoses.newest()).asked_by == "ops"
    assert await two.look(only_asked=True)
    assert doctor.examined == 2


async def test_one_that_dies_is_followed_by_another_and_tells_nothing_any_more(
    scene: Scene,
) -> None:
    slow = Doctor(AWAY)
    slow.may_end.clear()
    one, two = await rounds(scene, slow), await rounds(scene, Doctor(WELL), "two")
    await scene.pool.diagnoses.ask(by="ops")
    making = asyncio.create_task(one.look())
    await slow.began.wait()
    await scene.pass_time(minutes=4)
    assert await two.look(only_asked=True)
    slow.may_end.set()
    await making
    newest = await scene.store.diagnoses.newest()
    assert (newest.made_by, newest.findings) == ("two", [WELL])


async def test_it_is_made_anew_every_hour_and_when_its_replica_is_gone(scene: Scene) -> None:
    doctor = Doctor(WELL)
    one, two = await rounds(scene, doctor), await rounds(scene, doctor, "two")
    assert not await one.look(only_asked=True)
    assert await one.look()
    await scene.pass_time(minutes=59)
    assert not await two.look()
    await scene.pass_time(minutes=1)
    assert await one.look()
    assert not await two.look()
    await scene.store.replicas.gone("one")
    assert await two.look()


async def test_operators_read_it_and_admins_ask_for_it(database: Database) -> None:
    async with opened(database) as api:
        keys, client = Keys(api.store, Settings()), api.admin
        fresh = (await client.get("/api/v1/doctor")).json()
        assert (fresh["findings"], fresh["madeAt"]) == ([], None)
        asked = await client.post("/api/v1/doctor/check")
        assert asked.status_code == 202
        assert asked.json()["askedBy"]
        made = Rounds(api.store, api.pool, "one", examine=Doctor(AWAY))
        assert await made.look(only_asked=True)
        for role, status in ((Role.VIEWER, 200), (Role.CLIENT, 403)):
            _, key = await keys.create(role, role)
            headers = {"Authorization": f"Bearer {key}"}
            found = await client.get("/api/v1/doctor", headers=headers)
            assert found.status_code == status
            refused = await client.post("/api/v1/doctor/check", headers=headers)
            assert refused.status_code == 403
        (finding,) = (await client.get("/api/v1/doctor")).json()["findings"]
        assert finding == {
            "check": "database",
            "engine": None,
            "result": "problem",
            "found": "away",
            "mend": "Start it.",
        }
