"""Sessions: codes that sign browsers in, what browsers keep, and how that ends."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from botpool.access import sessions as module
from botpool.access.keys import Keys
from botpool.access.sessions import CODE_LIFETIME, SESSION_LIFETIME, Sessions
from botpool.errors import SessionNotFound
from botpool.pool.retention import Retention
from botpool.settings import Settings
from botpool.states import Role
from botpool.store.queries import named_queries
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from botpool.models.keys import ApiKey
    from botpool.models.sessions import Session
    from tests.support.scene import Scene


@pytest.fixture
def keys(scene: Scene) -> Keys:
    return Keys(scene.store, Settings())


@pytest.fixture
def sessions(scene: Scene) -> Sessions:
    return Sessions(scene.store)


@pytest.fixture
async def key(keys: Keys) -> ApiKey:
    return (await keys.create("notes", Role.CLIENT))[0]


async def signed_in(sessions: Sessions, key: ApiKey) -> tuple[Session, str]:
    """A session of a key, and what the browser keeps for it."""
    signed = await sessions.sign_in((await sessions.invite(key)).code)
    assert signed is not None
    return signed


async def test_a_code_signs_in_with_the_key_that_asked_for_it(
    scene: Scene, sessions: Sessions, key: ApiKey
) -> None:
    session, kept = await signed_in(sessions, key)
    now = await scene.store.installation.now()
    assert session.key == key
    assert (session.created_at, session.expires_at) == (now, now + timedelta(days=7))
    assert await sessions.authenticate(kept) == session


async def test_a_code_works_once(sessions: Sessions, key: ApiKey) -> None:
    code = (await sessions.invite(key)).code
    assert await sessions.sign_in(code) is not None
    assert await sessions.sign_in(code) is None


async def test_of_two_that_use_a_code_at_once_one_is_signed_in(
    scene: Scene, sessions: Sessions, key: ApiKey
) -> None:
    code = (await sessions.invite(key)).code
    async with scene.database.transaction() as other:
        # Both have to wait for this, so neither is done before the other begins.
        await other.execute("SELECT FROM sign_in_codes FOR UPDATE")
        both = asyncio.gather(sessions.sign_in(code), Sessions(scene.store).sign_in(code))
        waiting = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted"
        while (await scene.database.fetch(waiting))[0]["n"] < 2:
            await a_moment()
    assert sorted(signed is None for signed in await both) == [False, True]
    assert len(await sessions.listed()) == 1


async def test_a_code_expires_within_minutes(scene: Scene, sessions: Sessions, key: ApiKey) -> None:
    assert timedelta(minutes=1) < CODE_LIFETIME <= timedelta(minutes=15)
    first, second = [await sessions.invite(key) for _ in range(2)]
    assert first.expires_at == await scene.store.installation.now() + CODE_LIFETIME
    await scene.pass_time(seconds=CODE_LIFETIME.total_seconds() - 1)
    assert await sessions.sign_in(first.code) is not None
    await scene.pass_time(seconds=1)
    assert await sessions.sign_in(second.code) is None


async def test_a_session_expires_after_a_week(
    scene: Scene, sessions: Sessions, key: ApiKey
) -> None:
    assert timedelta(days=7) >= SESSION_LIFETIME
    session, kept = await signed_in(sessions, key)
    await scene.pass_time(seconds=SESSION_LIFETIME.total_seconds() - 1)
    assert await sessions.authenticate(kept) == session
    assert await sessions.opens(session.id)
    await scene.pass_time(seconds=1)
    assert await sessions.authenticate(kept) is None
    assert not await sessions.opens(session.id)
    assert await sessions.listed() == []


async def test_nothing_that_the_database_has_opens_anything(
    scene: Scene, keys: Keys, sessions: Sessions, key: ApiKey
) -> None:
    _, kept = await signed_in(sessions, key)
    invitation = await sessions.invite(key)
    rows = await scene.database.fetch(
        "SELECT digest, t::text AS whole FROM sessions t UNION ALL"
        " SELECT digest, t::text FROM sign_in_codes t UNION ALL"
        " SELECT digest, t::text FROM api_keys t"
    )
    digests = {row["digest"] for row in rows}
    assert {hashlib.sha256(text.encode()).digest() for text in (kept, invitation.code)} < digests
    for row in rows:
        assert kept not in row["whole"]
        assert invitation.code not in row["whole"]
        for stored in (row["digest"].hex(), row["digest"].decode("latin-1"), row["whole"]):
            assert await sessions.authenticate(stored) is None
            assert await sessions.sign_in(stored) is None
            assert await keys.authenticate(stored) is None
    assert invitation.code not in repr(invitation)


@pytest.mark.parametrize("text", ["", "unknown", "ключ", "x" * 100_000, "\0", "1.99999999999.x"])
async def test_what_nobody_was_given_opens_nothing(
    sessions: Sessions, key: ApiKey, text: str
) -> None:
    await signed_in(sessions, key)
    await sessions.invite(key)
    assert await sessions.authenticate(text) is None
    assert await sessions.sign_in(text) is None


async def test_a_code_is_no_session_and_a_session_no_code(sessions: Sessions, key: ApiKey) -> None:
    _, kept = await signed_in(sessions, key)
    code = (await sessions.invite(key)).code
    assert await sessions.authenticate(code) is None
    assert await sessions.sign_in(kept) is None


async def test_revoking_a_key_ends_its_sessions_and_codes_at_once(
    keys: Keys, sessions: Sessions, key: ApiKey
) -> None:
    session, kept = await signed_in(sessions, key)
    code = (await sessions.invite(key)).code
    await keys.revoke(key.id)
    assert await sessions.authenticate(kept) is None
    assert not await sessions.opens(session.id)
    assert await sessions.sign_in(code) is None
    assert await sessions.listed() == []


async def test_who_signs_out_is_signed_out_on_every_replica(
    scene: Scene, sessions: Sessions, key: ApiKey
) -> None:
    (session, kept), (_, another) = [await signed_in(sessions, key) for _ in range(2)]
    replica = Sessions(scene.store)
    assert await replica.authenticate(kept) is not None
    await sessions.sign_out(kept)
    assert await replica.authenticate(kept) is None
    assert not await replica.opens(session.id)
    assert await replica.authenticate(another) is not None
    await sessions.sign_out(kept)
    await sessions.sign_out("unknown")


async def test_a_session_is_listed_and_ended_by_its_own_key_or_by_an_operator(
    keys: Keys, sessions: Sessions, key: ApiKey
) -> None:
    other, _ = await keys.create("other", Role.CLIENT)
    mine, kept = await signed_in(sessions, key)
    theirs, _ = await signed_in(sessions, other)
    assert await sessions.listed() == [theirs, mine]
    assert await sessions.listed(key) == [mine]
    with pytest.raises(SessionNotFound, match=f"There is no session {mine.id}"):
        await sessions.end(mine.id, other)
    assert await sessions.authenticate(kept) is not None
    await sessions.end(mine.id, key)
    assert await sessions.authenticate(kept) is None
    await sessions.end(theirs.id)
    with pytest.raises(SessionNotFound):
        await sessions.end(theirs.id)
    assert await sessions.listed() == []


async def test_a_key_has_a_bounded_number_of_sessions_and_the_oldest_ends(
    keys: Keys, sessions: Sessions, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    other, _ = await keys.create("other", Role.CLIENT)
    theirs, _ = await signed_in(sessions, other)
    made = [(await signed_in(sessions, key))[0] for _ in range(4)]
    assert await sessions.listed(key) == [made[3], made[2]]
    assert await sessions.listed(other) == [theirs]


async def test_what_has_expired_is_forgotten(scene: Scene, sessions: Sessions, key: ApiKey) -> None:
    await signed_in(sessions, key)
    await sessions.invite(key)
    await scene.pass_time(seconds=SESSION_LIFETIME.total_seconds())
    live, _ = await signed_in(sessions, key)
    await sessions.invite(key)
    await Retention(scene.store, Settings()).prune()
    (row,) = await scene.database.fetch(
        "SELECT (SELECT array_agg(id) FROM sessions) AS sessions,"
        " (SELECT count(*) FROM sign_in_codes) AS codes"
    )
    assert (row["sessions"], row["codes"]) == ([live.id], 1)


@pytest.mark.parametrize(
    ("query", "arguments", "index"),
    [
        ("find", [[b"digest"]], "sessions_digest_key"),
        ("is_live", [1], "sessions_pkey"),
        ("sign_in", [b"code", b"kept", 1, 100], "sign_in_codes_pkey"),
    ],
)
async def test_a_session_is_found_by_an_index(
    scene: Scene, query: str, arguments: list[object], index: str
) -> None:
    rows = await scene.database.fetch(f"EXPLAIN {named_queries('sessions')[query]}", *arguments)
    plan = "\n".join(row[0] for row in rows)
    assert index in plan
    assert "Seq Scan" not in plan
