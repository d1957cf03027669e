"""What tests of Coolify act with: an imitation, in this process or in one of its own."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.fakes.coolify.coolify import Coolify
from tests.fakes.coolify.rules import Faults, Rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.coolify.containers import Containers
    from tests.fakes.coolify.records import Application


@dataclass(frozen=True)
class Scene:
    """A Coolify, and a client of its API."""

    coolify: Coolify
    client: httpx.AsyncClient

    def body(self, **changes: Any) -> dict[str, Any]:
        return {
            "project_uuid": self.coolify.project_uuid,
            "environment_name": "production",
            "server_uuid": "server-a",
            "docker_registry_image_name": "ghcr.io/x/bot",
            "docker_registry_image_tag": "1",
            "ports_exposes": "80",
            **changes,
        }

    async def application(self, **changes: Any) -> Application:
        answer = await self.client.post("/applications/dockerimage", json=self.body(**changes))
        assert answer.status_code == 201, answer.text
        return self.coolify.applications[answer.json()["uuid"]]

    async def call(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.client.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def start(self, application: Application) -> str:
        answer = await self.call("POST", f"/applications/{application.uuid}/start")
        return str(answer["deployment_uuid"])

    async def started(self, **changes: Any) -> Application:
        application = await self.application(**changes)
        await self.start(application)
        await self.coolify.idle()
        return application

    async def stop(self, application: Application, **query: Any) -> None:
        await self.call("POST", f"/applications/{application.uuid}/stop", params=query)

    async def shown(self, application: Application) -> dict[str, Any]:
        found: dict[str, Any] = await self.call("GET", f"/applications/{application.uuid}")
        return found

    async def logs(self, application: Application) -> str:
        return str((await self.call("GET", f"/applications/{application.uuid}/logs"))["logs"])

    async def set_variables(self, application: Application, *items: Any, status: int = 201) -> Any:
        path = f"/applications/{application.uuid}/envs/bulk"
        return await self.call("PATCH", path, status, json={"data": items})

    async def status_of(self, deployment: str) -> str:
        return str((await self.call("GET", f"/deployments/{deployment}"))["status"])


@asynccontextmanager
async def imitated(
    containers: Containers | None = None, faults: Faults | None = None, **rules: Any
) -> AsyncIterator[Scene]:
    coolify = Coolify(Rules(**rules), containers=containers, faults=faults)
    headers = {"Accept": "application/json", "Authorization": f"Bearer {coolify.token}"}
    transport = httpx.ASGITransport(coolify.app)
    base = "http://coolify/api/v1"
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
        try:
            yield Scene(coolify, client)
        finally:
            await coolify.close()
    assert coolify.running() == []


@asynccontextmanager
async def served(*options: str) -> AsyncIterator[tuple[dict[str, str], httpx.AsyncClient]]:
    """An imitation in a process of its own, ended by SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.coolify", "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(6)]
        said = dict(shlex.split(line)[0].split("=", 1) for line in lines)
        token = said["COOLIFY_API_TOKEN"]
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        base = f"{said['COOLIFY_API_URL']}/api/v1"
        async with httpx.AsyncClient(base_url=base, headers=headers) as client:
            yield said, client
    finally:
        os.kill(process.pid, signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0
