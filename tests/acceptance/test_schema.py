"""Schemathesis asks for whatever the OpenAPI document allows, and for what it doesn't."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from botpool.states import Role
from tests.support.server import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.support.server import Serve

# A cursor and a used idempotency key are refused by what botpool knows, not by their form; a stream
# has no end, and a wait for orders takes 25 seconds.
NOT_BY_FORM = "positive_data_acceptance"
ENDLESS = ("/api/v1/stream", "/api/v1/runtime/wait")
# Each bot in it has an answer of its own, so what is wrong with one is no wrong request.
BULK = "/api/v1/bots/bulk"
ONE_BY_ONE = "negative_data_rejection"
REQUESTS = "examples,coverage,fuzzing"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schema")


@pytest.fixture(scope="module")
async def botpool(folder: Path) -> AsyncIterator[Serve]:
    """A real one, whose bots do nothing, so that all is about the API."""
    async with served(
        folder,
        "--stop-bots",
        leave_grace_ms="1000",
        process_command="sleep 3600",
        max_pool_size="2",
        rate_limit_per_second="100000",
        trusted_proxies="127.0.0.1",
    ) as botpool:
        yield botpool
        assert await botpool.ends() == 0


async def schemathesis(
    botpool: Serve, token: str, *options: str, without: Sequence[str] = (NOT_BY_FORM,)
) -> str:
    """Run it with all other checks, and return what it says. It fails on any finding."""
    url = str(botpool.client.base_url).rstrip("/")
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "schemathesis"),
        *("run", f"{url}/openapi.json", "-H", f"Authorization: Bearer {token}"),
        *("--checks", "all", "--exclude-checks", ",".join(without)),
        *(option for path in ENDLESS for option in ("--exclude-path", path)),
        *("--max-examples", "10", "--seed", "1"),
        *("--generation-database", "none", "--no-color", *options),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks"},
    )
    output, _ = await process.communicate()
    said = output.decode()
    assert process.returncode == 0, said[-16000:]
    return said


async def key_of(botpool: Serve, folder: Path, role: Role) -> str:
    """A key of this role, as an operator makes it."""
    if role is Role.ADMIN:
        return botpool.key
    said = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), "keys", "create", "schema"),
        env={"PATH": os.environ["PATH"], "BOTPOOL_DATA_DIR": str(folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await said.communicate()
    return output.decode().strip()


async def lift_limits(botpool: Serve) -> None:
    """Of the default project: requests before may have set some."""
    limits = ("maxLiveBots", "maxCreationsPerMinute", "maxDurationMs")
    body = {"limits": dict.fromkeys(limits)}
    assert (await botpool.client.patch("/api/v1/projects/1", json=body)).status_code == 200


@pytest.mark.parametrize("role", [Role.ADMIN, Role.CLIENT])
@pytest.mark.parametrize("phases", ["examples,coverage", "fuzzing", "stateful"])
async def test_no_request_is_answered_by_an_error_or_by_what_is_not_documented(
    botpool: Serve, folder: Path, role: Role, phases: str
) -> None:
    """Nor does any sequence of requests, each with what the ones before have answered."""
    await lift_limits(botpool)
    key = await key_of(botpool, folder, role)
    # A caller that revokes or replaces its own key tests nothing any more.
    others = f"/runtime/|/keys/|{BULK}"
    said = await schemathesis(botpool, key, "--exclude-path-regex", others, "--phases", phases)
    assert re.search(r"Scenarios: +[1-9]|Tested: [3-9][0-9]", said)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.CLIENT])
async def test_nor_is_a_bulk(botpool: Serve, folder: Path, role: Role) -> None:
    await lift_limits(botpool)
    key = await key_of(botpool, folder, role)
    options = ("--include-path", BULK, "--phases", REQUESTS)
    said = await schemathesis(botpool, key, *options, without=(NOT_BY_FORM, ONE_BY_ONE))
    assert "Tested: 1" in said


async def test_nor_is_what_a_container_asks(botpool: Serve, folder: Path) -> None:
    await lift_limits(botpool)
    made = await botpool.client.post(
        "/api/v1/bots", json={"meetingUrl": "https://teams.live.com/meet/9312345678901"}
    )
    bot = f"/api/v1/bots/{made.json()['bot']['id']}"
    while (found := (await botpool.client.get(bot)).json())["status"] != "JOINING_CALL":
        assert found["endedAt"] is None
    (container,) = (folder / "slots").glob(f"*/{found['containerRef']}/container.json")
    token = json.loads(container.read_text())["environment"]["BOTPOOL_SLOT_TOKEN"]
    options = ("--include-path-regex", "/runtime/", "--phases", REQUESTS)
    said = await schemathesis(botpool, token, *options)
    assert "Tested: 5" in said


async def test_every_call_of_the_design_is_there(botpool: Serve) -> None:
    document = (await botpool.client.get("/openapi.json")).json()
    found = {
        f"{method.upper()} {path}" for path, calls in document["paths"].items() for method in calls
    }
    runtime = {
        f"POST /api/v1/runtime/{name}"
        for name in ("claim", "heartbeat", "wait", "status", "events", "logs")
    }
    assert runtime <= found
    assert {
        "POST /api/v1/bots",
        "GET /api/v1/bots",
        "GET /api/v1/bots/{botId}",
        "POST /api/v1/bots/{botId}/stop",
        "GET /api/v1/bots/{botId}/timeline",
        "GET /api/v1/bots/{botId}/logs",
        "GET /api/v1/pool",
        "GET /api/v1/slots",
        "GET /api/v1/slots/{slotId}",
        "POST /api/v1/slots/{slotId}/recover",
        "POST /api/v1/slots/{slotId}/drain",
        "GET /api/v1/slots/{slotId}/timeline",
        "GET /api/v1/containers/{containerRef}/bot",
        "GET /api/v1/hosts",
        "POST /api/v1/hosts/{engine}/{host}/drain",
        "POST /api/v1/hosts/{engine}/{host}/undrain",
        "GET /api/v1/replicas",
        "GET /api/v1/queue",
        "GET /api/v1/stream",
        "GET /api/v1/projects",
        "POST /api/v1/projects",
        "GET /api/v1/projects/{projectId}",
        "PATCH /api/v1/projects/{projectId}",
        "DELETE /api/v1/projects/{projectId}",
        "GET /api/v1/keys",
        "POST /api/v1/keys",
        "POST /api/v1/keys/{keyId}/rotate",
        "DELETE /api/v1/keys/{keyId}",
        "GET /api/v1/webhooks",
        "POST /api/v1/webhooks",
        "GET /api/v1/webhooks/{webhookId}",
        "PATCH /api/v1/webhooks/{webhookId}",
        "DELETE /api/v1/webhooks/{webhookId}",
        "POST /api/v1/webhooks/{webhookId}/rotate-secret",
        "GET /api/v1/webhooks/deliveries",
        "POST /api/v1/webhooks/deliveries/{deliveryId}/resend",
        "POST /api/v1/webhooks/deliveries/resend",
        "GET /healthz",
        "GET /readyz",
    } <= found
