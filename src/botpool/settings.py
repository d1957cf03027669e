"""Every setting, with its default. Environment variables with the prefix `BOTPOOL_`."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AliasChoices,
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from botpool.errors import SettingsInvalid
from botpool.states import Platform

Milliseconds = Annotated[int, Field(gt=0, le=2**31 - 1)]

# botpool sets these itself, for containers: what starts in one may have them.
_OF_CONTAINERS = ("URL", "SLOT_TOKEN")
_PREFIX = "BOTPOOL_"

KEY_FORM = "16 to 500 printable ASCII characters, without a space"
"""What a key that was not made by us must look like."""


def is_key(text: str) -> bool:
    """Whether this can be a key: hard to guess, and fit for a header."""
    return re.fullmatch(r"[!-~]{16,500}", text) is not None


def is_webhook_secret(text: str) -> bool:
    """Whether this is a secret as Standard Webhooks has it."""
    found = re.fullmatch(r"whsec_([A-Za-z0-9+/]{32,86})={0,2}", text)
    return found is not None and len(found[1]) % 4 != 1


def _coolify(name: str, description: str, default: str | None = None) -> Any:
    """A setting that is also known by the name that others use for it, without our prefix."""
    names = AliasChoices(f"botpool_{name}", name)
    return Field(default=default, validation_alias=names, description=description)


class Settings(BaseSettings):
    """How this botpool is set up. Read once, then handed on."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True
    )

    database_url: SecretStr | None = Field(
        default=None, description="PostgreSQL 14 or later. Without it, botpool starts its own."
    )
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("botpool"),
        description="Where botpool keeps what is its own, the embedded PostgreSQL among it.",
    )
    engine: str = Field(default="process", description="Where the containers of new slots run.")
    image_google_meet: str | None = Field(default=None, description="Image of a Google Meet bot.")
    image_microsoft_teams: str | None = Field(default=None, description="Image of a Teams bot.")
    image_zoom: str | None = Field(default=None, description="Image of a Zoom bot.")
    max_pool_size: int = Field(
        default=100, ge=0, le=1_000_000, description="How many slots a platform has at most."
    )
    default_queue_timeout_ms: Milliseconds = Field(
        default=300_000, description="How long a bot waits for a slot if its request doesn't say."
    )
    max_queue_timeout_ms: Milliseconds = Field(
        default=600_000, description="The longest wait that a request may ask for."
    )
    max_launch_attempts: int = Field(
        default=2, ge=1, description="How often a bot is launched before it has been in its call."
    )
    relaunch_wait_ms: int = Field(
        default=5_000,
        ge=0,
        le=600_000,
        description="How long a bot waits for its second launch where the first has failed, and as"
        " much longer for each further one.",
    )
    poll_interval_ms: Milliseconds = Field(
        default=1_000, description="How often due work is looked for when nothing announced it."
    )
    claim_ttl_ms: Milliseconds = Field(
        default=15_000,
        description="After this time without a sign of life, the work of a replica is taken over.",
    )
    deploy_timeout_ms: Milliseconds = Field(
        default=1_500_000, description="How long a deployment may take in all."
    )
    deploy_poll_interval_ms: Milliseconds = Field(
        default=15_000, description="How often a deployment is looked at, once it takes long."
    )
    deploy_grace_ms: Milliseconds = Field(
        default=180_000,
        description="How long after a start an engine's `exited` may be of before the start.",
    )
    max_concurrent_deployments: int = Field(
        default=4, ge=1, description="How many containers start on a host at a time."
    )
    max_slots_per_host: int | None = Field(
        default=None, ge=1, description="How many slots a host has at most. By default no limit."
    )
    stop_grace_ms: Milliseconds = Field(
        default=10_000, description="How long a container has to end before it is forced to."
    )
    leave_grace_ms: Milliseconds = Field(
        default=30_000, description="How long a bot has to leave its call once it is told to."
    )
    sync_interval_ms: Milliseconds = Field(
        default=5_000, description="How often the engine's containers are compared with the slots."
    )
    deploying_timeout_ms: Milliseconds = Field(
        default=900_000, description="After this time a deployment is looked at as one that hangs."
    )
    heartbeat_freshness_ms: Milliseconds = Field(
        default=300_000, description="How old a heartbeat may be before the bot counts as lost."
    )
    max_skipped_recoveries: int = Field(
        default=3,
        ge=0,
        description="How often a deployment that hangs is skipped while its bot is heard.",
    )
    recovery_interval_ms: Milliseconds = Field(
        default=60_000,
        description=(
            "How often what is stuck is looked for; and how long after a failed recovery a slot, or"
            " an ill host, is tried again, longer each time."
        ),
    )
    host_failures: int = Field(
        default=5, ge=1, description="How many failures after each other make a host ill."
    )
    host_failure_window_ms: Milliseconds = Field(
        default=120_000, description="How long after a failure the next one on its host counts."
    )
    max_recovery_attempts: int = Field(
        default=3, ge=1, description="How many failed recoveries a slot has before it is deleted."
    )
    heartbeat_interval_ms: Milliseconds = Field(
        default=10_000, description="How often a bot is asked to send a heartbeat."
    )
    host: str = Field(
        default="127.0.0.1", description="The address to listen on. `0.0.0.0` or `::` is every one."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on.")
    admin_key: SecretStr | None = Field(
        default=None,
        description=(
            "The admin's key. By default one that is made at the first start and kept in"
            " `admin.key` in the data folder. One that was set before opens until it is revoked."
        ),
    )
    rate_limit_per_second: int = Field(
        default=50,
        ge=1,
        le=1_000_000,
        description=(
            "How many requests a second a client's key may make, and twice as many at once."
            " An admin's may make ten times as many."
        ),
    )
    public_url: str | None = Field(
        default=None,
        description="What containers call botpool by. By default the address that it listens on.",
    )
    process_command: str | None = Field(
        default=None,
        description="What the `process` engine runs for a bot. By default the sample bot.",
    )
    docker_hosts: str | None = Field(
        default=None,
        description=(
            "Docker Engine APIs, separated by commas, each `name=address` or an address:"
            " `unix:///run/docker.sock`, `tcp://10.0.0.2:2376`. By default Docker's own choice."
        ),
    )
    docker_network: str = Field(
        default="bridge", description="The network that a container is attached to."
    )
    docker_cpus: float | None = Field(default=None, gt=0, description="Processors a container.")
    docker_memory: ByteSize | None = Field(
        default=None, description="Memory a container, such as `2GiB`."
    )
    docker_shm_size: ByteSize | None = Field(
        default=None, description="Size of `/dev/shm`, which browsers need, such as `1GiB`."
    )
    coolify_api_url: str | None = _coolify(
        "coolify_api_url", "Coolify's address, such as `https://coolify.example`."
    )
    coolify_api_token: SecretStr | None = _coolify(
        "coolify_api_token", "A token with the abilities read, write and deploy: `1|…`."
    )
    coolify_project_uuid: str | None = _coolify(
        "coolify_project_uuid", "The project that applications are made in."
    )
    coolify_environment_name: str = _coolify(
        "coolify_environment_name", "The environment of that project.", "production"
    )
    coolify_server_uuid: str | None = _coolify(
        "coolify_server_uuid", "The server that slots run on; several, separated by commas."
    )
    coolify_destination_uuid: str | None = _coolify(
        "coolify_destination_uuid",
        "The destination of each server, in the order of the servers. Needed for a server that has"
        " several.",
    )
    coolify_requests_per_minute: int = Field(
        default=200,
        ge=10,
        description="How many requests a process makes to Coolify in a minute at most.",
    )
    coolify_bot_data: bool = Field(
        default=True,
        description=(
            "Whether a start gives its container `BOT_DATA` and a token of its own. Without, a"
            " start is a request less, and the token stays that of the slot."
        ),
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description=(
            "What webhooks are signed with: 24 to 64 random bytes as base64, after `whsec_`."
            " By default one that botpool made for itself."
        ),
    )
    allow_private_callbacks: bool = Field(
        default=False, description="Whether callback URLs may lead to private addresses."
    )
    retention_days: int = Field(
        default=30, ge=1, description="How long ended bots and transitions are kept."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="The least important log line that is written."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )

    @field_validator("host")
    @classmethod
    def _read_host(cls, host: str) -> str:
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @field_validator("public_url")
    @classmethod
    def _read_public_url(cls, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            url = urlsplit(text.strip())
            fits = url.scheme in {"http", "https"} and url.hostname and url.port != 0
        except ValueError:
            fits = False
        if not fits or re.search(r"[\s?#]", text.strip()):
            raise ValueError("must be an http(s) address, such as https://botpool.example")
        if url.path.rstrip("/").endswith("/api/v1"):
            raise ValueError("must end before /api/v1")
        return text.strip().rstrip("/")

    @field_validator("log_level", mode="before")
    @classmethod
    def _read_log_level(cls, level: object) -> object:
        return level.upper() if isinstance(level, str) else level

    @field_validator("admin_key")
    @classmethod
    def _check_admin_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not is_key(key.get_secret_value()):
            raise ValueError(f"must be {KEY_FORM}")
        return key

    @field_validator("webhook_secret")
    @classmethod
    def _check_webhook_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not is_webhook_secret(secret.get_secret_value()):
            raise ValueError("must be `whsec_` and 24 to 64 bytes as base64")
        return secret

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if self.default_queue_timeout_ms > self.max_queue_timeout_ms:
            raise ValueError(
                "BOTPOOL_DEFAULT_QUEUE_TIMEOUT_MS must be at most BOTPOOL_MAX_QUEUE_TIMEOUT_MS"
            )
        return self

    @property
    def runtime_url(self) -> str:
        """What a container calls botpool by."""
        return self.public_url or self.local_url

    @property
    def local_url(self) -> str:
        """Where this machine finds what listens, on every address too: 0.0.0.0 or ::."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def image(self, platform: Platform) -> str | None:
        """The image that new slots of a platform are made of."""
        images = {
            Platform.GOOGLE_MEET: self.image_google_meet,
            Platform.MICROSOFT_TEAMS: self.image_microsoft_teams,
            Platform.ZOOM: self.image_zoom,
        }
        return images[platform]


def load_settings(**given: Any) -> Settings:
    """Read the environment; what is given goes before it.

    Raises `SettingsInvalid`, which names what to mend and no secret.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = "; ".join(
            ": ".join([*(_variable(str(name)) for name in problem["loc"]), _said(problem["msg"])])
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise SettingsInvalid(f"{problems}.") from None


def _variable(name: str) -> str:
    """The variable that a setting is read from, by its name or one of its aliases."""
    return f"{_PREFIX}{name.upper().removeprefix(_PREFIX)}"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


def unknown_variables() -> dict[str, str | None]:
    """Every variable that looks like a setting and is none, with the one that may be meant."""
    known = [name.upper() for name in Settings.model_fields]
    found: dict[str, str | None] = {}
    for variable in sorted(os.environ):
        prefix, name = variable[: len(_PREFIX)].upper(), variable[len(_PREFIX) :].upper()
        if prefix == _PREFIX and name not in {*known, *_OF_CONTAINERS}:
            near = difflib.get_close_matches(name, known, n=1)
            found[variable] = f"{_PREFIX}{near[0]}" if near else None
    return found
