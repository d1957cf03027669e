"""`botpool projects`, `botpool webhooks` and what `botpool keys` does with them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from botpool.access.keys import Keys
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store
from tests.support.command import botpool
from tests.support.scene import add_host, new_bot

if TYPE_CHECKING:
    from typing import Any

    from botpool.store import Database


async def ran(database_url: str, *command: str) -> str:
    """What a command prints. It fails if the command does."""
    code, output, error = await botpool(*command, database_url=database_url)
    assert code == 0, error
    return output


async def read(database_url: str, *command: str) -> Any:
    return json.loads(await ran(database_url, *command, "--json"))


async def test_a_project_is_made_shown_changed_and_deleted(database_url: str) -> None:
    made = await ran(database_url, "projects", "create", "[bold]notes", "--max-live-bots", "5")
    assert made.startswith("created project 2: [bold]notes\n")
    assert re.search(r"whsec_[\w+/]{43}=\n$", made)
    shown = await read(database_url, "projects", "show", "[bold]notes")
    assert (shown["id"], shown["limits"]["maxLiveBots"]) == (2, 5)
    options = ("--max-live-bots", "none", "--max-duration-ms", "60000", "--rename", "crm")
    await ran(database_url, "projects", "update", "[bold]notes", *options)
    *_, shown = (await read(database_url, "projects", "list"))["projects"]
    assert (shown["name"], shown["limits"]) == (
        "crm",
        {"maxLiveBots": None, "maxCreationsPerMinute": None, "maxDurationMs": 60_000},
    )
    assert "crm" in await ran(database_url, "projects", "list")
    assert await ran(database_url, "projects", "delete", "crm") == "deleted project crm\n"
    assert await botpool("projects", "show", "crm", database_url=database_url) == (
        7,
        "",
        "botpool: There is no project with the name crm.\n",
    )
    code, _, error = await botpool(
        "projects", "create", "x", "--max-live-bots", "many", database_url=database_url
    )
    assert code == 2
    assert "--max-live-bots must be a number" in error


async def test_keys_are_made_for_a_project_and_rotated(
    database: Database, database_url: str
) -> None:
    await ran(database_url, "projects", "create", "crm")
    old = (await ran(database_url, "keys", "create", "k", "--project", "crm")).strip()
    new = (await ran(database_url, "keys", "rotate", "1", "--overlap-hours", "2")).strip()
    keys = Keys(Store(database), Settings())
    for secret in (old, new):
        found = await keys.authenticate(secret)
        assert found is not None
        assert (found.name, found.project_id) == ("k", 2)
    first, second = (await read(database_url, "keys", "list"))["keys"]
    assert (first["expiresAt"] is not None, second["expiresAt"]) == (True, None)
    assert "crm" in await ran(database_url, "keys", "list")
    assert await botpool("keys", "create", "k", "--project", "x", database_url=database_url) == (
        7,
        "",
        "botpool: There is no project with the name x.\n",
    )


async def test_webhooks_are_made_shown_changed_resent_and_deleted(
    database: Database, database_url: str
) -> None:
    url = "https://hooks.example.com/in"
    await ran(database_url, "projects", "create", "crm")
    options = ("--project", "crm", "--event", "bot.status_changed", "--description", "d")
    secret = await ran(database_url, "webhooks", "create", url, *options)
    assert re.fullmatch(r"whsec_[\w+/]{43}=\n", secret)
    (shown,) = (await read(database_url, "webhooks", "list", "--project", "crm"))["webhooks"]
    assert (shown["id"], shown["url"], shown["eventTypes"]) == (1, url, ["bot.status_changed"])
    listed = await read(database_url, "webhooks", "list", "--project", "default")
    assert listed == {"webhooks": []}
    table = await ran(database_url, "webhooks", "update", "1", "--pause")
    assert "paused on request" in " ".join(table.split())
    assert "ok" in await ran(database_url, "webhooks", "update", "1", "--resume")
    assert (await read(database_url, "webhooks", "show", "1"))["pausedAt"] is None
    assert (await ran(database_url, "webhooks", "rotate-secret", "1")) != secret
    assert (await ran(database_url, "projects", "rotate-secret", "crm")).startswith("whsec_")
    pool = Pool(Store(database), Settings())
    await pool.queue.configure()
    await add_host(pool)
    await pool.creation.create_bot(new_bot(project_id=2))
    await database.execute(
        "UPDATE webhook_deliveries SET next_attempt_at = NULL, given_up_at = botpool_now()"
    )
    found = await read(database_url, "webhooks", "deliveries", "--status", "given_up")
    (delivery,) = found["deliveries"]
    assert (delivery["webhookId"], delivery["status"]) == (1, "given_up")
    assert "given_up" in await ran(database_url, "webhooks", "deliveries")
    resent = await ran(database_url, "webhooks", "resend", "--since-hours", "1")
    assert resent == "resent 1\n"
    assert await ran(database_url, "webhooks", "resend", "1") == "resent 1\n"
    code, _, _ = await botpool("webhooks", "resend", database_url=database_url)
    assert code == 2
    assert await ran(database_url, "webhooks", "delete", "1") == "deleted webhook 1\n"
    assert await botpool("webhooks", "show", "1", database_url=database_url) == (
        7,
        "",
        "botpool: There is no webhook 1.\n",
    )
