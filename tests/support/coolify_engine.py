"""The engine on an imitated Coolify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from botpool.engines.coolify.api import CoolifyApi
from botpool.engines.coolify.budget import Budget
from botpool.engines.coolify.engine import CoolifyEngine

if TYPE_CHECKING:
    from tests.fakes.coolify import Coolify


def api_of(coolify: Coolify) -> CoolifyApi:
    """The API of an imitated Coolify."""
    transport = httpx.ASGITransport(app=coolify.app)
    budget = Budget(coolify.rules.requests_per_minute)
    return CoolifyApi("http://coolify.test", coolify.token, budget, transport=transport)


def engine_on(coolify: Coolify, **options: Any) -> CoolifyEngine:
    """An engine on an imitated Coolify."""
    return CoolifyEngine(
        **{
            "api": api_of(coolify),
            "servers": {server: coolify.destinations[server] for server in coolify.rules.servers},
            "project": coolify.project_uuid,
            "environment": coolify.environment_name,
            "installation": "test",
            **options,
        },
    )
