"""Keys: made, found, revoked, and what a browser keeps instead of one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Any

import pytest

from botpool.access import FRESH_SECONDS, SIGN_IN_LIFETIME, Access
from botpool.errors import InvalidRequest, KeyNotFound
from botpool.settings import Settings
from botpool.states import Role
from botpool.store.queries import QUERIES
from tests.unit.test_limits import Clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from botpool.models import ApiKey
    from tests.scene import Scene


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(scene: Scene, clock: Clock) -> Access:
    return Access(scene.store, Settings(), clock=clock)


@pytest.fixture
def calls(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the queries on keys that were run."""
    called: list[str] = []

    def spied(name: str, query: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*args: Any) -> Any:
            called.append(name)
            return await query(*args)

        return run

    for name in ("find_api_keys", "note_api_key_uses"):
        monkeypatch.setattr(scene.store, name, spied(name, getattr(scene.store, name)))
    return called


async def used(access: Access, *, at: object) -> None:
    """Return once the only key is known to have been used then."""
    while (await access.list_keys())[0].last_used_at != at:
        pass


def seal(digest: bytes, key_id: int, expires: int) -> str:
    """Written anew here, so that a change of it is noticed: it signs every browser out."""
    said = f"botpool sign-in {key_id} {expires}".encode()
    sealed = base64.urlsafe_b64encode(hmac.digest(digest, said, "sha256")).rstrip(b"=")
    return f"{key_id}.{expires}.{sealed.decode()}"


# Making and finding


@pytest.mark.parametrize("role", Role)
async def test_a_key_is_random_tells_its_role_and_is_found(access: Access, role: Role) -> None:
    created, key = await access.create_key("notes", role)
    _, another = await access.create_key("notes", role)
    assert re.fullmatch(rf"bp_{role}_[A-Za-z0-9_-]{{43}}", key)
    assert (created.name, created.role, created.prefix) == ("notes", role, key[: len(role) + 10])
    assert key != another
    assert await access.authenticate(key) == created


async def test_only_the_hash_of_a_key_is_kept(scene: Scene, access: Access) -> None:
    created, key = await access.create_key("notes", Role.CLIENT)
    (row,) = await scene.database.fetch("SELECT digest, api_keys::text AS whole FROM api_keys")
    assert row["digest"] == hashlib.sha256(key.encode()).digest()
    assert key.removeprefix(created.prefix) not in row["whole"]
    known = await scene.store.find_api_keys([row["digest"]], [])
    assert row["digest"].hex() not in repr(created)
    assert repr(row["digest"]) not in repr(known)


@pytest.mark.parametrize("key", ["", "bp_client_", "unknown", "ключ", "x" * 100_000, "\0"])
async def test_what_is_no_key_opens_nothing(access: Access, key: str) -> None:
    await access.create_key("notes", Role.CLIENT)
    assert await access.authenticate(key) is None
    assert await access.sign_in(key) is None


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\0", "\udcff", "x" * 101])
async def test_a_name_that_no_list_can_show_is_refused(access: Access, name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 100 characters"):
        await access.create_key(name, Role.CLIENT)
    assert await access.list_keys() == []


async def test_a_crowd_of_requests_costs_one_query(access: Access, calls: list[str]) -> None:
    keys = [(await access.create_key(str(n), Role.CLIENT))[1] for n in range(20)]
    found = await asyncio.gather(*(access.authenticate(key) for key in keys * 5))
    assert [key and key.name for key in found] == [str(n) for n in range(20)] * 5
    assert calls.count("find_api_keys") == 1


async def test_what_was_read_a_moment_ago_is_not_read_again(
    access: Access, clock: Clock, calls: list[str]
) -> None:
    _, key = await access.create_key("notes", Role.CLIENT)
    await access.authenticate(key)
    clock.now += FRESH_SECONDS - 0.1
    await access.authenticate(key)
    assert calls.count("find_api_keys") == 1
    clock.now += 0.1
    await access.authenticate(key)
    assert calls.count("find_api_keys") == 2


async def test_an_unknown_key_is_looked_for_each_time_and_found_once_it_is_there(
    scene: Scene, access: Access
) -> None:
    key = "bp_client_soon"
    assert await access.authenticate(key) is None
    await scene.store.add_api_key("s", Role.CLIENT, hashlib.sha256(key.encode()).digest(), "")
    assert await access.authenticate(key) is not None


async def test_what_is_remembered_is_bounded(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botpool.access._MOST_REMEMBERED", 2)
    keys = [(await access.create_key(str(n), Role.CLIENT))[1] for n in range(4)]
    for key in keys:
        await access.authenticate(key)
    assert len(access._recent) == 2


@pytest.mark.parametrize("arguments", [([b"digest"], []), ([], [1]), ([b"digest"], [1])])
async def test_a_key_is_found_by_an_index(
    scene: Scene, arguments: tuple[list[bytes], list[int]]
) -> None:
    rows = await scene.database.fetch(f"EXPLAIN {QUERIES['find_api_keys']}", *arguments)
    plan = "\n".join(row[0] for row in rows)
    assert "api_keys_digest_key" in plan
    assert "Seq Scan" not in plan


# Revoking


async def test_a_revoked_key_is_dead_at_once_where_it_was_revoked(access: Access) -> None:
    created, key = await access.create_key("notes", Role.CLIENT)
    assert await access.authenticate(key)
    revoked = await access.revoke_key(created.id)
    assert revoked.revoked_at is not None
    assert await access.authenticate(key) is None


async def test_a_revoked_key_is_dead_within_seconds_on_every_replica(
    scene: Scene, access: Access, clock: Clock
) -> None:
    created, key = await access.create_key("notes", Role.CLIENT)
    _, cookie = await access.sign_in(key) or (None, "")
    other = Access(scene.store, Settings(), clock=clock)
    assert await other.authenticate(key)
    assert await other.authenticate_browser(cookie)
    await access.revoke_key(created.id)
    assert FRESH_SECONDS <= 5
    clock.now += FRESH_SECONDS
    assert await other.authenticate(key) is None
    assert await other.authenticate_browser(cookie) is None


async def test_to_revoke_twice_is_to_revoke_once(scene: Scene, access: Access) -> None:
    created, _ = await access.create_key("notes", Role.CLIENT)
    first = await access.revoke_key(created.id)
    await scene.pass_time(hours=1)
    assert await access.revoke_key(created.id) == first
    assert await access.list_keys() == [first]


async def test_to_revoke_a_key_that_is_not_there_says_so(access: Access) -> None:
    with pytest.raises(KeyNotFound, match="There is no key 7"):
        await access.revoke_key(7)


# Last use


async def test_the_last_use_is_noted_once_a_minute(
    scene: Scene, access: Access, clock: Clock, calls: list[str]
) -> None:
    _, key = await access.create_key("notes", Role.CLIENT)
    start = await scene.store.now()
    await access.authenticate(key)
    await used(access, at=start)
    for seconds, notes in ((59, 1), (1, 2)):
        now = await scene.pass_time(seconds=seconds)
        clock.now += FRESH_SECONDS
        await access.authenticate(key)
        await used(access, at=now if notes == 2 else start)
        assert calls.count("note_api_key_uses") == notes


async def test_two_replicas_note_one_use(scene: Scene, access: Access) -> None:
    created, _ = await access.create_key("notes", Role.CLIENT)
    start = await scene.store.now()
    await scene.store.note_api_key_uses([created.id], 60_000)
    await scene.pass_time(seconds=59)
    await scene.store.note_api_key_uses([created.id], 60_000)
    assert (await access.list_keys())[0].last_used_at == start


async def test_nobody_waits_for_the_last_use_to_be_noted(scene: Scene, access: Access) -> None:
    created, key = await access.create_key("notes", Role.CLIENT)
    async with scene.database.transaction() as other:
        await other.execute("SELECT FROM api_keys WHERE id = $1 FOR UPDATE", created.id)
        assert await access.authenticate(key) == created
        assert (await access.list_keys())[0].last_used_at is None
    await used(access, at=await scene.store.now())


# Browsers


async def signed_in(access: Access, role: Role = Role.CLIENT) -> tuple[ApiKey, str, str]:
    """A key as it is listed, itself, and what a browser keeps of it."""
    created, key = await access.create_key("notes", role)
    signed = await access.sign_in(key)
    assert signed is not None
    assert signed[0] == created
    return created, key, signed[1]


async def test_what_a_browser_keeps_opens_what_its_key_does_and_is_not_the_key(
    scene: Scene, access: Access
) -> None:
    created, key, kept = await signed_in(access)
    digest = hashlib.sha256(key.encode()).digest()
    expires = int((await scene.store.now() + SIGN_IN_LIFETIME).timestamp())
    found = await access.authenticate_browser(kept)
    assert (found and found.id) == created.id
    assert kept == seal(digest, created.id, expires)
    assert await access.authenticate(kept) is None
    assert await access.authenticate_browser(key) is None


async def test_what_a_browser_keeps_lasts_a_week(
    scene: Scene, access: Access, clock: Clock
) -> None:
    created, _, kept = await signed_in(access)
    for seconds, found in ((7 * 24 * 3600 - 2, created.id), (2, None)):
        await scene.pass_time(seconds=seconds)
        clock.now += FRESH_SECONDS
        key = await access.authenticate_browser(kept)
        assert (key and key.id) == found


async def test_what_a_browser_keeps_can_not_be_written_by_another(access: Access) -> None:
    admin, _, _ = await signed_in(access, Role.ADMIN)
    client, client_key, kept = await signed_in(access)
    key_id, expires, sealed = kept.split(".")
    digest = hashlib.sha256(client_key.encode()).digest()
    forged = [
        f"{admin.id}.{expires}.{sealed}",
        f"{key_id}.{int(expires) + 1}.{sealed}",
        f"{key_id}.{expires}.{'B' if sealed[0] == 'A' else 'A'}{sealed[1:]}",
        f"{key_id}.{expires}.",
        f"{key_id}.{expires}",
        seal(digest, admin.id, int(expires)),
        seal(b"", int(key_id), int(expires)),
        f"{10**17}.{expires}.{sealed}",
        f"{10**30}.{expires}.{sealed}",
        f"٣.{expires}.{sealed}",
        f"{kept}\n",
        f"{kept}.{sealed}",
        "",
        "ключ",
    ]
    assert [await access.authenticate_browser(each) for each in forged] == [None] * len(forged)
    found = await access.authenticate_browser(kept)
    assert (found and found.id) == client.id
