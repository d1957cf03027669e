"""Projects and keys over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from botpool.access.keys import FRESH_SECONDS, Keys
from botpool.access.projects import Projects
from botpool.errors import InvalidRequest, KeyNotFound, ProjectNotFound
from botpool.settings import Settings
from botpool.states import Role
from tests.integration.test_bots_api import opened, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from botpool.store import Database
    from tests.integration.test_bots_api import Api
    from tests.support.scene import Scene

MEET = "https://meet.google.com/abc-defg-hij"
HOUR = 3_600_000


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with opened(database) as api:
        yield api


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def made(api: Api, **body: Any) -> dict[str, Any]:
    response = await api.admin.post("/api/v1/projects", json=body)
    assert response.status_code == 201, response.text
    assert response.headers["Cache-Control"] == "no-store"
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_project_is_made_changed_and_deleted(api: Api) -> None:
    answer = await made(api, name="notes", limits={"maxLiveBots": 1, "maxDurationMs": 60_000})
    assert answer["webhookSecret"].startswith("whsec_")
    project = answer["project"]
    path = f"/api/v1/projects/{project['id']}"
    assert (project["name"], project["isDefault"]) == ("notes", False)
    assert project["limits"] == {
        "maxLiveBots": 1,
        "maxCreationsPerMinute": None,
        "maxDurationMs": 60_000,
    }
    changed = await api.admin.patch(path, json={"limits": {"maxLiveBots": None}, "name": "more"})
    assert changed.json()["name"] == "more"
    assert changed.json()["limits"]["maxLiveBots"] is None
    assert changed.json()["limits"]["maxDurationMs"] == 60_000
    assert (await api.admin.get(path)).json() == changed.json()
    names = [each["name"] for each in (await api.admin.get("/api/v1/projects")).json()["projects"]]
    assert names == ["default", "a", "b", "more"]
    assert (await api.admin.delete(path)).status_code == 204
    problem(await api.admin.get(path), 404, "project_not_found")
    problem(await api.admin.delete(path), 404, "project_not_found")
    problem(await api.admin.delete("/api/v1/projects/1"), 409, "project_in_use")
    problem(await api.admin.post("/api/v1/projects", json={"name": "a"}), 409, "project_name_taken")


async def test_a_project_with_a_live_bot_stays(api: Api) -> None:
    project = (await made(api, name="notes"))["project"]["id"]
    bot = await api.admin.post("/api/v1/bots", json={"meetingUrl": MEET, "projectId": project})
    path = f"/api/v1/projects/{project}"
    body = problem(await api.admin.delete(path), 409, "project_in_use")
    assert "stop them first" in body["detail"]
    await api.admin.post(f"/api/v1/bots/{bot.json()['bot']['id']}/stop")
    assert (await api.admin.delete(path)).status_code == 204


async def test_a_limit_is_told_with_a_code_of_its_own(api: Api) -> None:
    project = (await made(api, name="n", limits={"maxLiveBots": 1, "maxCreationsPerMinute": 2}))[
        "project"
    ]["id"]
    ask = {"meetingUrl": MEET, "projectId": project}
    bot = (await api.admin.post("/api/v1/bots", json=ask)).json()["bot"]
    body = problem(await api.admin.post("/api/v1/bots", json=ask), 429, "too_many_bots")
    assert body["detail"] == "The project may have 1 bots at once, and has them."
    await api.admin.post(f"/api/v1/bots/{bot['id']}/stop")
    bot = (await api.admin.post("/api/v1/bots", json=ask)).json()["bot"]
    await api.admin.post(f"/api/v1/bots/{bot['id']}/stop")
    refused = await api.admin.post("/api/v1/bots", json=ask)
    problem(refused, 429, "too_many_creations")
    assert refused.headers["Retry-After"] == "60"


async def test_a_client_sees_its_own_project_and_changes_none(api: Api) -> None:
    (own,) = (await api.alice.get("/api/v1/projects")).json()["projects"]
    assert own["name"] == "a"
    path = f"/api/v1/projects/{own['id']}"
    assert (await api.alice.get(path)).json() == own
    for call in (
        api.alice.post("/api/v1/projects", json={"name": "x"}),
        api.alice.patch(path, json={"limits": {"maxLiveBots": None}}),
        api.alice.delete(path),
        api.alice.post("/api/v1/keys", json={"name": "x"}),
        api.alice.delete("/api/v1/keys/1"),
    ):
        problem(await call, 403, "forbidden")


# Keys


async def new_key(api: Api, **body: Any) -> httpx.Response:
    return await api.admin.post("/api/v1/keys", json={"name": "k", **body})


async def test_a_key_is_made_listed_and_revoked(api: Api) -> None:
    response = await new_key(api, projectId=2)
    assert (response.status_code, response.headers["Cache-Control"]) == (201, "no-store")
    key, secret = response.json()["key"], response.json()["secret"]
    assert (key["role"], key["projectId"], key["expiresAt"]) == ("client", 2, None)
    assert secret.startswith(key["prefix"])
    listed = (await api.admin.get("/api/v1/keys?projectId=2")).json()["keys"]
    assert [each["name"] for each in listed] == ["key", "k"]
    assert secret not in str(listed)
    own = (await api.alice.get("/api/v1/keys")).json()["keys"]
    assert [each["id"] for each in own] == [each["id"] for each in listed]
    assert (await api.alice.get("/api/v1/keys?projectId=3")).json() == {"keys": []}
    revoked = await api.admin.delete(f"/api/v1/keys/{key['id']}")
    assert revoked.json()["expiresAt"] is not None
    got = await api.admin.get("/api/v1/bots", headers=bearer(secret))
    problem(got, 401, "unauthorized")
    problem(await api.admin.delete("/api/v1/keys/99"), 404, "key_not_found")


async def test_a_key_that_is_rotated_works_beside_the_new_one_for_a_while(api: Api) -> None:
    """The new one sees the same bots, and repeats the same requests."""
    old = (await new_key(api, projectId=2)).json()
    ask = {"meetingUrl": MEET}
    once = {"Idempotency-Key": "once"}
    bot = (
        await api.admin.post("/api/v1/bots", json=ask, headers={**bearer(old["secret"]), **once})
    ).json()["bot"]
    path = f"/api/v1/keys/{old['key']['id']}/rotate"
    problem(await api.alice.post(path), 404, "key_not_found")
    rotated = await api.admin.post(path, json={"overlapMs": HOUR}, headers=bearer(old["secret"]))
    assert (rotated.status_code, rotated.headers["Cache-Control"]) == (201, "no-store")
    new = rotated.json()
    assert (new["key"]["name"], new["key"]["projectId"]) == ("k", 2)
    for secret in (old["secret"], new["secret"]):
        found = await api.admin.get(f"/api/v1/bots/{bot['id']}", headers=bearer(secret))
        assert found.status_code == 200
    again = await api.admin.post(
        "/api/v1/bots", json=ask, headers={**bearer(new["secret"]), **once}
    )
    assert again.json()["bot"]["id"] == bot["id"]


async def test_a_rotated_key_ends_with_its_overlap(scene: Scene) -> None:
    now = [0.0]
    keys = Keys(scene.store, Settings(), clock=lambda: now[0])
    made, old = await keys.create("k", Role.VIEWER)
    rotated, new = await keys.rotate(made.id)
    assert (rotated.name, rotated.role, rotated.project_id) == ("k", Role.VIEWER, None)
    await scene.pass_time(hours=23)
    assert await keys.authenticate(old)
    await scene.pass_time(hours=1)
    now[0] += FRESH_SECONDS
    assert await keys.authenticate(old) is None
    assert await keys.authenticate(new)
    for unfit in (made.id, 99):
        with pytest.raises(KeyNotFound, match=f"no key {unfit} that works"):
            await keys.rotate(unfit)


async def test_a_second_rotation_lengthens_no_life(scene: Scene) -> None:
    keys = Keys(scene.store, Settings())
    made, _ = await keys.create("k", Role.CLIENT)
    await keys.rotate(made.id)
    first = (await scene.store.keys.all())[0].expires_at
    await scene.pass_time(hours=1)
    await keys.rotate(made.id)
    assert (await scene.store.keys.all())[0].expires_at == first


async def test_only_a_clients_key_has_a_project(scene: Scene) -> None:
    keys = Keys(scene.store, Settings())
    assert (await keys.create("k", Role.CLIENT))[0].project_id == 1
    assert (await keys.create("k", Role.VIEWER))[0].project_id is None
    with pytest.raises(InvalidRequest, match="Only a client's key belongs"):
        await keys.create("k", Role.ADMIN, 1)
    with pytest.raises(ProjectNotFound, match="no project 99"):
        await keys.create("k", Role.CLIENT, 99)


async def test_the_keys_of_a_project_end_with_it(scene: Scene) -> None:
    project, _ = await Projects(scene.store).create("a")
    keys = Keys(scene.store, Settings())
    _, key = await keys.create("k", Role.CLIENT, project.id)
    await Projects(scene.store).delete(project.id)
    assert await keys.authenticate(key) is None
