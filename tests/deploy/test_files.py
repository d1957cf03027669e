"""What is in deploy/: each file is read by the program that it is for, or by its rules."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from botpool.engines.process.folder import TEMPORARY
from botpool.settings import Settings
from testbed.docker import need
from testbed.image import run

DEPLOY = Path(__file__).parents[2] / "deploy"
FILLED = {
    "SITE": "http://localhost",
    "POSTGRES_PASSWORD": "abc123",
    "BOTPOOL_ADMIN_KEY": "a-key-that-an-operator-thought-up",
    "DOCKER_GROUP": "999",
}
TEXTS = [
    path
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.suffix in {"", ".yaml", ".example", ".env", ".service", ".conf"}
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_setting_that_a_file_names_is_there(path: Path) -> None:
    known = {f"BOTPOOL_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"BOTPOOL_[A-Z_]+", path.read_text("utf-8")))
    assert named - known == set()


async def composed(folder: Path, text: str) -> dict[str, Any]:
    """The compose file as Docker Compose understands it, with this .env."""
    need("docker-compose")
    shutil.copytree(DEPLOY, folder / "deploy", dirs_exist_ok=True)
    (folder / "deploy" / ".env").write_text(text)
    file = str(folder / "deploy" / "compose.yaml")
    found = await run("docker-compose", "--project-name", "test", "--file", file, "config")
    composed: dict[str, Any] = yaml.safe_load(found)
    return composed


def example(**values: str) -> str:
    """The example of an .env, filled in."""
    text = (DEPLOY / "env.example").read_text("utf-8")
    for name, value in values.items():
        assert f"\n{name}=\n" in text
        text = text.replace(f"\n{name}=\n", f"\n{name}={value}\n")
    return text


async def test_the_example_filled_in_is_all_that_compose_needs(tmp_path: Path) -> None:
    services = (await composed(tmp_path, example(**FILLED)))["services"]
    assert set(services) == {"postgres", "api-1", "api-2", "worker-1", "worker-2", "caddy"}
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["stop_grace_period"], name
        # The image of botpool has a check of its own.
        assert "healthcheck" in service or service["image"] == "botpool:local", name


async def test_only_workers_have_the_socket_and_no_bot_reaches_the_database(tmp_path: Path) -> None:
    found = await composed(tmp_path, example(**FILLED))
    assert found["networks"]["bots"]["name"] == "botpool-bots"
    for name, service in found["services"].items():
        has_socket = any("docker.sock" in each for each in service.get("volumes", ()))
        assert has_socket == name.startswith("worker"), name
        assert ("bots" in service["networks"]) == (name == "caddy"), name
        assert ("ports" in service) == (name == "caddy"), name
    worker = found["services"]["worker-1"]
    assert worker["environment"]["BOTPOOL_DOCKER_NETWORK"] == "botpool-bots"
    assert worker["environment"]["BOTPOOL_PUBLIC_URL"] == "http://caddy:8080"
    assert "http://:8080 {" in (DEPLOY / "Caddyfile").read_text("utf-8")


@pytest.mark.parametrize("missing", FILLED)
async def test_what_has_no_safe_default_is_asked_for_in_a_sentence(
    tmp_path: Path, missing: str
) -> None:
    given = {name: value for name, value in FILLED.items() if name != missing}
    with pytest.raises(RuntimeError, match=r"set it in \.env, to "):
        await composed(tmp_path, example(**given))


def test_every_variable_of_the_compose_file_is_explained_in_the_example() -> None:
    asked = set(re.findall(r"\$\{([A-Z_]+)", (DEPLOY / "compose.yaml").read_text("utf-8")))
    told = re.findall(r"^#?([A-Z_]+)=", (DEPLOY / "env.example").read_text("utf-8"), re.MULTILINE)
    assert asked <= set(told)
    assert len(told) == len(set(told))


@pytest.mark.parametrize("file", ["Caddyfile", "proxy/Caddyfile"])
async def test_caddy_takes_its_files(file: str, tmp_path: Path) -> None:
    need("caddy")
    await run(
        *("caddy", "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / file)),
        SITE="botpool.example",
        HOME=str(tmp_path),
    )


def test_traefiks_file_names_only_what_it_defines() -> None:
    http = yaml.safe_load((DEPLOY / "proxy" / "traefik.yaml").read_text("utf-8"))["http"]
    for router in http["routers"].values():
        assert router["service"] in http["services"]
        assert set(router["middlewares"]) <= set(http["middlewares"])
    for service in http["services"].values():
        assert service["loadBalancer"]["serversTransport"] in http["serversTransports"]
        assert service["loadBalancer"]["healthCheck"]["path"] == "/readyz"


@pytest.mark.parametrize(
    ("unit", "instance"), [("botpool-api", "8001"), ("botpool-worker", "8101")]
)
async def test_systemd_takes_the_units(tmp_path: Path, unit: str, instance: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs another program: apt-get install systemd")
    program = shutil.which("true")
    text = (DEPLOY / "systemd" / f"{unit}@.service").read_text("utf-8")
    assert text.count("/opt/botpool/bin/botpool ") == 1
    path = tmp_path / f"{unit}@{instance}.service"
    path.write_text(text.replace("/opt/botpool/bin/botpool", str(program)))
    assert await run("systemd-analyze", "verify", str(path)) == ""
    told = await run("systemd-analyze", "security", "--offline=true", str(path))
    (exposure,) = re.findall(r"exposure level for \S+: (\d+\.\d)", told)
    assert float(exposure) < 5


def test_bots_outlive_the_unit_of_their_worker_and_have_their_folders_there() -> None:
    worker = (DEPLOY / "systemd" / "botpool-worker@.service").read_text("utf-8")
    assert "\nKillMode=process\n" in worker
    assert f"\nReadWritePaths={TEMPORARY}\n" in worker
    assert "PrivateTmp" not in worker
