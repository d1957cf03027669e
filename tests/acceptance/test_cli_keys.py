"""`botpool keys`, as an operator runs it."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from botpool.access.keys import Keys
from botpool.settings import Settings
from botpool.states import Role
from botpool.store import Store, connect
from tests.support.command import botpool

if TYPE_CHECKING:
    from botpool.store import Database


@pytest.mark.parametrize(
    ("options", "role"),
    [((), Role.CLIENT), (("--role", "admin"), Role.ADMIN), (("--role", "viewer"), Role.VIEWER)],
    ids=str,
)
async def test_a_key_is_printed_alone_and_once(
    database: Database, database_url: str, options: tuple[str, ...], role: Role
) -> None:
    code, output, hint = await botpool(
        "keys", "create", "notes", *options, database_url=database_url
    )
    assert code == 0
    assert re.fullmatch(rf"bp_{role}_[\w-]{{43}}\n", output)
    assert hint == f"This is key 1, with the role {role}. Keep it: it can't be shown again.\n"
    found = await Keys(Store(database), Settings()).authenticate(output.strip())
    assert found
    assert (found.id, found.name, found.role) == (1, "notes", role)


async def test_keys_are_listed_without_what_they_open_by(
    database: Database, database_url: str
) -> None:
    keys = Keys(Store(database), Settings())
    first, secret = await keys.create("[bold]notes[/bold]", Role.CLIENT)
    await keys.revoke((await keys.create("old", Role.ADMIN))[0].id)
    code, output, error = await botpool("keys", "list", "--json", database_url=database_url)
    assert (code, error) == (0, "")
    rows = json.loads(output)["keys"]
    assert [(row["id"], row["name"], row["role"]) for row in rows] == [
        (1, "[bold]notes[/bold]", "client"),
        (2, "old", "admin"),
    ]
    assert [bool(row["expiresAt"]) for row in rows] == [False, True]
    assert datetime.fromisoformat(rows[0]["createdAt"]) == first.created_at
    assert set(rows[0]) == {
        *("id", "name", "role", "projectId", "prefix"),
        *("createdAt", "lastUsedAt", "expiresAt"),
    }
    code, table, error = await botpool("keys", "list", database_url=database_url)
    assert (code, error) == (0, "")
    assert "[bold]" in table
    assert f"{first.prefix}…" in table
    assert secret.removeprefix(first.prefix) not in output + table


async def test_a_key_is_revoked(database: Database, database_url: str) -> None:
    keys = Keys(Store(database), Settings())
    _, key = await keys.create("notes", Role.CLIENT)
    for _ in range(2):
        assert await botpool("keys", "revoke", "1", database_url=database_url) == (
            0,
            "revoked key 1: notes\n",
            "",
        )
    assert await keys.authenticate(key) is None


async def test_what_goes_wrong_is_one_sentence(database_url: str) -> None:
    assert await botpool("keys", "revoke", "7", database_url=database_url) == (
        7,
        "",
        "botpool: There is no key 7.\n",
    )
    assert await botpool("keys", "create", " ", database_url=database_url) == (
        1,
        "",
        "botpool: The name of a key must have 1 to 100 printable characters.\n",
    )


async def test_keys_migrate_nothing(empty_database_url: str) -> None:
    for command in (("create", "notes"), ("list",), ("revoke", "1")):
        assert await botpool("keys", *command, database_url=empty_database_url) == (
            2,
            "",
            "botpool: The database is not migrated: run `botpool migrate`.\n",
        )
    async with connect(empty_database_url) as database:
        assert await database.fetch("SELECT FROM pg_tables WHERE schemaname = 'public'") == []
