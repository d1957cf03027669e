"""Keys: made, found and revoked."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from botpool.access.keys import FRESH_SECONDS, Keys
from botpool.errors import InvalidRequest, KeyNotFound
from botpool.settings import Settings
from botpool.states import Role
from botpool.store.queries import named_queries
from tests.support.waiting import a_moment
from tests.unit.test_limits import Clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.scene import Scene


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(scene: Scene, clock: Clock) -> Keys:
    return Keys(scene.store, Settings(), clock=clock)


@pytest.fixture
def calls(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the queries on keys that were run."""
    called: list[str] = []

    def spied(name: str, query: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*args: Any) -> Any:
            called.append(name)
            return await query(*args)

        return run

    for name in ("find", "note_uses"):
        monkeypatch.setattr(scene.store.keys, name, spied(name, getattr(scene.store.keys, name)))
    return called


async def used(scene: Scene, *, at: object) -> None:
    """Return once the only key is known to have been used then."""
    while (await scene.store.keys.all())[0].last_used_at != at:
        await a_moment()


# Making and finding


@pytest.mark.parametrize("role", Role)
async def test_a_key_is_random_tells_its_role_and_is_found(keys: Keys, role: Role) -> None:
    created, key = await keys.create("notes", role)
    _, another = await keys.create("notes", role)
    assert re.fullmatch(rf"bp_{role}_[A-Za-z0-9_-]{{43}}", key)
    assert (created.name, created.role, created.prefix) == ("notes", role, key[: len(role) + 10])
    assert key != another
    assert await keys.authenticate(key) == created


async def test_only_the_hash_of_a_key_is_kept(scene: Scene, keys: Keys) -> None:
    created, key = await keys.create("notes", Role.CLIENT)
    (row,) = await scene.database.fetch("SELECT digest, api_keys::text AS whole FROM api_keys")
    assert row["digest"] == hashlib.sha256(key.encode()).digest()
    assert key.removeprefix(created.prefix) not in row["whole"]
    known = await scene.store.keys.find([row["digest"]], [])
    assert row["digest"].hex() not in repr(created)
    assert repr(row["digest"]) not in repr(known)


@pytest.mark.parametrize("key", ["", "bp_client_", "unknown", "ключ", "x" * 100_000, "\0"])
async def test_what_is_no_key_opens_nothing(keys: Keys, key: str) -> None:
    await keys.create("notes", Role.CLIENT)
    assert await keys.authenticate(key) is None


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\0", "\udcff", "x" * 101])
async def test_a_name_that_no_list_can_show_is_refused(scene: Scene, keys: Keys, name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 100 printable characters"):
        await keys.create(name, Role.CLIENT)
    assert await scene.store.keys.all() == []


async def test_a_crowd_of_requests_costs_one_query(keys: Keys, calls: list[str]) -> None:
    texts = [(await keys.create(str(n), Role.CLIENT))[1] for n in range(20)]
    found = await asyncio.gather(*(keys.authenticate(text) for text in texts * 5))
    assert [key and key.name for key in found] == [str(n) for n in range(20)] * 5
    assert calls.count("find") == 1


async def test_what_was_read_a_moment_ago_is_not_read_again(
    keys: Keys, clock: Clock, calls: list[str]
) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    await keys.authenticate(key)
    clock.now += FRESH_SECONDS - 0.1
    await keys.authenticate(key)
    assert calls.count("find") == 1
    clock.now += 0.1
    await keys.authenticate(key)
    assert calls.count("find") == 2


async def test_an_unknown_key_is_looked_for_each_time_and_found_once_it_is_there(
    scene: Scene, keys: Keys
) -> None:
    key = "bp_client_soon"
    assert await keys.authenticate(key) is None
    await scene.store.keys.add("s", Role.ADMIN, None, hashlib.sha256(key.encode()).digest(), "")
    assert await keys.authenticate(key) is not None


async def test_what_is_remembered_is_bounded(
    keys: Keys, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botpool.access.keys._MOST_REMEMBERED", 2)
    texts = [(await keys.create(str(n), Role.CLIENT))[1] for n in range(4)]

    async def reads(text: str) -> int:
        """How many queries it takes to authenticate a key."""
        before = calls.count("find")
        await keys.authenticate(text)
        return calls.count("find") - before

    assert [await reads(text) for text in texts] == [1] * 4
    assert [await reads(text) for text in texts[2:] + texts[:2]] == [0, 0, 1, 1]


@pytest.mark.parametrize("arguments", [([b"digest"], []), ([], [1]), ([b"digest"], [1])])
async def test_a_key_is_found_by_an_index(
    scene: Scene, arguments: tuple[list[bytes], list[int]]
) -> None:
    rows = await scene.database.fetch(f"EXPLAIN {named_queries('keys')['find']}", *arguments)
    plan = "\n".join(row[0] for row in rows)
    assert "api_keys_digest_key" in plan
    assert "Seq Scan" not in plan


# Revoking


async def test_a_revoked_key_is_dead_at_once_where_it_was_revoked(keys: Keys) -> None:
    created, key = await keys.create("notes", Role.CLIENT)
    assert await keys.authenticate(key)
    revoked = await keys.revoke(created.id)
    assert revoked.expires_at is not None
    assert await keys.authenticate(key) is None


async def test_a_revoked_key_is_dead_within_seconds_on_every_replica(
    scene: Scene, keys: Keys, clock: Clock
) -> None:
    created, key = await keys.create("notes", Role.CLIENT)
    other = Keys(scene.store, Settings(), clock=clock)
    assert await other.authenticate(key)
    await keys.revoke(created.id)
    assert FRESH_SECONDS <= 5
    clock.now += FRESH_SECONDS
    assert await other.authenticate(key) is None


async def test_to_revoke_twice_is_to_revoke_once(scene: Scene, keys: Keys) -> None:
    created, _ = await keys.create("notes", Role.CLIENT)
    first = await keys.revoke(created.id)
    await scene.pass_time(hours=1)
    assert await keys.revoke(created.id) == first
    assert await scene.store.keys.all() == [first]


async def test_to_revoke_a_key_that_is_not_there_says_so(keys: Keys) -> None:
    with pytest.raises(KeyNotFound, match="There is no key 7"):
        await keys.revoke(7)


# Last use


async def test_the_last_use_is_noted_once_a_minute(
    scene: Scene, keys: Keys, clock: Clock, calls: list[str]
) -> None:
    _, key = await keys.create("notes", Role.CLIENT)
    start = await scene.store.installation.now()
    await keys.authenticate(key)
    await used(scene, at=start)
    for seconds, notes in ((59, 1), (1, 2)):
        now = await scene.pass_time(seconds=seconds)
        clock.now += FRESH_SECONDS
        await keys.authenticate(key)
        await used(scene, at=now if notes == 2 else start)
        assert calls.count("note_uses") == notes


async def test_two_replicas_note_one_use(scene: Scene, keys: Keys) -> None:
    created, _ = await keys.create("notes", Role.CLIENT)
    start = await scene.store.installation.now()
    await scene.store.keys.note_uses([created.id], 60_000)
    await scene.pass_time(seconds=59)
    await scene.store.keys.note_uses([created.id], 60_000)
    assert (await scene.store.keys.all())[0].last_used_at == start


async def test_no_request_waits_for_the_last_use_to_be_noted(scene: Scene, keys: Keys) -> None:
    created, key = await keys.create("notes", Role.CLIENT)
    async with scene.database.transaction() as other:
        await other.execute("SELECT FROM api_keys WHERE id = $1 FOR UPDATE", created.id)
        assert await keys.authenticate(key) == created
        assert (await scene.store.keys.all())[0].last_used_at is None
    await used(scene, at=await scene.store.installation.now())
