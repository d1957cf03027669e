"""Every setting, with its default: environment variables that begin with `BOTPOOL_`."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AliasChoices,
    ByteSize,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from botpool.container_file import (
    OURS,
    ContainerFile,
    ContainerOptions,
    DockerOptions,
    read_container_file,
)
from botpool.errors import SettingsInvalid
from botpool.models.addresses import TrustedProxies
from botpool.states import PLATFORM_ALIASES, Platform

if TYPE_CHECKING:
    from collections.abc import Iterable

Milliseconds = Annotated[int, Field(gt=0, le=2**31 - 1)]

_ANY_NUMBER = 1_000_000
_PREFIX = "BOTPOOL_"
_NEAR = 0.6
"""How much alike two words are, from 0 to 1, of which one may be the other misspelt."""

API_KEY = f"{_PREFIX}API_KEY"
"""The key that commands call the API of another machine with."""
API_URL = f"{_PREFIX}URL"
"""Where commands find that API. Containers get a variable of the same name."""
_NO_SETTINGS = {*OURS, API_KEY}

KEY_FORM = "16 to 500 printable ASCII characters, without a space"
"""What a key that botpool did not make must look like."""


def is_key(text: str) -> bool:
    """Whether this can be a key: long enough to be hard to guess, and valid in a header."""
    return re.fullmatch(r"[!-~]{16,500}", text) is not None


def is_webhook_secret(text: str) -> bool:
    """Whether this is a secret in the form that Standard Webhooks defines."""
    found = re.fullmatch(r"whsec_([A-Za-z0-9+/]{32,86})={0,2}", text)
    return found is not None and len(found[1]) % 4 != 1


def read_warm_slots(text: str) -> dict[Platform, int]:
    """How many slots of each platform are kept warm: `2`, or `google-meet=2,zoom=1`."""
    if re.fullmatch(r"\s*\d{1,6}\s*", text):
        return dict.fromkeys(Platform, int(text))
    warm: dict[Platform, int] = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        platform = PLATFORM_ALIASES.get(name, name)
        if platform not in [*Platform] or not re.fullmatch(r"\d{1,6}", number):
            names = ", ".join(Platform)
            raise ValueError(
                f"must be a number, or such as `google-meet=2,zoom=1`; platforms are {names}"
            )
        warm[Platform(platform)] = int(number)
    return warm


def _coolify(name: str, description: str, default: str | None = None) -> Any:
    """A setting that is also read by the name that Coolify's users know, without our prefix."""
    names = AliasChoices(f"botpool_{name}", name)
    return Field(default=default, validation_alias=names, description=description)


OLD_NAMES = {
    "reservation_ttl_ms": "claim_ttl_ms",
    "deployment_limit_ms": "deploy_timeout_ms",
    "stuck_after_ms": "deploying_timeout_ms",
}
"""Settings that were renamed, with their old names. The old names are still read."""


def _renamed(name: str, default: int, description: str) -> Any:
    """A setting that is also read by its old name."""
    names = AliasChoices(f"botpool_{name}", f"botpool_{OLD_NAMES[name]}")
    return Field(default=default, validation_alias=names, description=description)


class Settings(BaseSettings):
    """How this botpool is set up. Read once, then passed on."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True
    )

    database_url: SecretStr | None = Field(
        default=None,
        description="The PostgreSQL to use, 14 or later. If not set, botpool starts its own.",
    )
    database_wait_ms: int = Field(
        default=60_000,
        ge=0,
        le=2**31 - 1,
        description="How long `botpool serve`, when it starts, waits for a database that is away.",
    )
    database_connections: int = Field(
        default=20,
        ge=5,
        le=1_000,
        description="The most connections to the database that one `botpool serve` opens.",
    )
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("botpool"),
        description="The folder for botpool's own files, including the embedded PostgreSQL.",
    )
    engine: str = Field(default="process", description="The engine on which new slots run.")
    image_google_meet: str | None = Field(default=None, description="Image of a Google Meet bot.")
    image_microsoft_teams: str | None = Field(
        default=None, description="Image of a Microsoft Teams bot."
    )
    image_zoom: str | None = Field(default=None, description="Image of a Zoom bot.")
    container_file: Path | None = Field(
        default=None,
        description=(
            "A TOML file with what containers get beyond their image: environment variables,"
            " volumes, limits and more, for all platforms or one. It wins over the settings of"
            " Docker's network and limits. See [its reference](container-file.md)."
        ),
    )
    max_pool_size: int = Field(
        default=100, ge=0, le=1_000_000, description="The most slots that a platform may have."
    )
    warm_slots: str = Field(
        default="0",
        description="How many slots are kept made and idle, ready for the next bots: a number for"
        " each platform, such as `2`, or `google-meet=2,zoom=1`. As far as there is room.",
    )
    pull_ahead: bool = Field(
        default=True,
        description="Whether images are brought to every host before a bot asks for them.",
    )
    slot_hour_price: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="What a slot costs an hour, in any currency. With it, insights tell costs.",
    )
    default_queue_timeout_ms: Milliseconds = Field(
        default=300_000,
        description="How long a bot waits for a slot, unless its request says otherwise.",
    )
    max_queue_timeout_ms: Milliseconds = Field(
        default=600_000, description="The longest wait that a request may ask for."
    )
    max_launch_attempts: int = Field(
        default=2,
        ge=1,
        description="How many times a bot is launched if it fails before it is in its call.",
    )
    relaunch_wait_ms: int = Field(
        default=5_000,
        ge=0,
        le=600_000,
        description="How long a bot waits before its second launch on the same host. Each further"
        " launch there waits that much longer.",
    )
    poll_interval_ms: Milliseconds = Field(
        default=1_000,
        description="How often botpool looks for work when no notification arrives.",
    )
    reservation_ttl_ms: Milliseconds = _renamed(
        "reservation_ttl_ms",
        15_000,
        "How long a replica may be silent before another replica takes over its work.",
    )
    deployment_limit_ms: Milliseconds = _renamed(
        "deployment_limit_ms",
        1_500_000,
        "How long a deployment may take before it counts as failed.",
    )
    deploy_poll_interval_ms: Milliseconds = Field(
        default=15_000, description="How often botpool checks a deployment that takes long."
    )
    deploy_grace_ms: Milliseconds = Field(
        default=180_000,
        description="How long after a start botpool ignores the status `exited`, on engines whose"
        " statuses lag behind. It may still be from before the start.",
    )
    max_concurrent_deployments: int = Field(
        default=4,
        ge=1,
        description="How many containers may be starting on a host at a time. Coolify gets twice"
        " as many, because it has a queue of its own.",
    )
    max_slots_per_host: int | None = Field(
        default=None, ge=1, description="The most slots that a host may have. No limit by default."
    )
    stop_grace_ms: Milliseconds = Field(
        default=10_000, description="How long a container has to stop before it is killed."
    )
    leave_grace_ms: Milliseconds = Field(
        default=30_000, description="How long a bot has to leave its call after it is told to."
    )
    sync_interval_ms: Milliseconds = Field(
        default=5_000,
        description="How often botpool compares an engine's containers with its slots.",
    )
    stuck_after_ms: Milliseconds = _renamed(
        "stuck_after_ms",
        900_000,
        "How long a deployment may take before recovery looks at it.",
    )
    heartbeat_freshness_ms: Milliseconds = Field(
        default=300_000, description="How old a bot's last heartbeat may be before the bot is lost."
    )
    max_skipped_recoveries: int = Field(
        default=3,
        ge=0,
        description="How many times recovery skips a slow deployment whose bot sends heartbeats."
        " After that its slot is busy.",
    )
    recovery_interval_ms: Milliseconds = Field(
        default=60_000,
        description=(
            "How often botpool looks for what is stuck. Also the first wait before a slot in error,"
            " or an unhealthy host, is tried again; each further wait is longer."
        ),
    )
    host_failures: int = Field(
        default=5, ge=1, description="How many failures in a row make a host unhealthy."
    )
    host_failure_window_ms: Milliseconds = Field(
        default=120_000,
        description="How close together failures must be to count as failures in a row.",
    )
    lost_after_ms: Milliseconds = Field(
        default=900_000,
        description=(
            "On Kubernetes: how long after its end should have come a container may be without"
            " proof of it, because its node is away, before its slot is deleted unproved."
        ),
    )
    max_recovery_attempts: int = Field(
        default=3,
        ge=1,
        description="How many times recovering a slot may fail before it is deleted.",
    )
    heartbeat_interval_ms: Milliseconds = Field(
        default=10_000, description="How often a bot should send a heartbeat."
    )
    max_silence_ms: int = Field(
        default=3_600_000,
        ge=0,
        le=2**31 - 1,
        description=(
            "How long a bot stays in its call while botpool can't be reached; `0` for ever. A bot"
            " can't tell whether it is cut off or botpool is away: an outage longer than this"
            " empties calls."
        ),
    )
    host: str = Field(
        default="127.0.0.1",
        description="The address to listen on. `0.0.0.0` or `::` means every address.",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on.")
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description=(
            "The port on which a worker without an API answers `/healthz`, `/readyz` and"
            " `/metrics`; `0` for a free one. By default it listens on none. The other roles answer"
            " on `BOTPOOL_PORT`."
        ),
    )
    metrics_open: bool = Field(
        default=False,
        description="Whether anybody may read `/metrics`. By default an admin's or a viewer's key"
        " is needed.",
    )
    admin_key: SecretStr | None = Field(
        default=None,
        description=(
            "The admin's key. By default botpool makes one at its first start and keeps it in"
            " `admin.key` in the data folder. A key that was set earlier works until it is revoked."
        ),
    )
    rate_limit_per_second: int = Field(
        default=50,
        ge=1,
        le=1_000_000,
        description=(
            "How many requests a client's key may make in a second. Bursts may be twice as large."
            " An admin's key may make ten times as many."
        ),
    )
    trusted_proxies: str | None = Field(
        default=None,
        description=(
            "The proxies before botpool whose `X-Forwarded-For` and `X-Forwarded-Proto` count:"
            " addresses and networks, separated by commas, such as `10.0.0.2,172.16.0.0/12`. By"
            " default nobody's. See [access](../how-to/access.md#behind-a-proxy)."
        ),
    )
    path_prefix: str = Field(
        default="",
        description=(
            "The path below which a proxy has botpool, such as `/botpool`, if it has no host of its"
            " own. See [proxies](../how-to/proxy.md#below-a-path)."
        ),
    )
    max_metadata_bytes: int = Field(
        default=16_384,
        ge=0,
        le=2**20,
        description="How many bytes a bot's metadata may have, as JSON.",
    )
    max_config_bytes: int = Field(
        default=65_536,
        ge=0,
        le=2**20,
        description="How many bytes a bot's configuration may have, as JSON.",
    )
    public_url: str | None = Field(
        default=None,
        description="The URL at which containers reach botpool. By default the listening address.",
    )
    process_command: str | None = Field(
        default=None,
        description="The command that the `process` engine runs for a bot. By default the sample"
        " bot.",
    )
    docker_hosts: str | None = Field(
        default=None,
        description=(
            "The Docker hosts, separated by commas. Each is an address, or `name=address`:"
            " `unix:///run/docker.sock`, `tcp://10.0.0.2:2376`. By default the host that the"
            " `docker` command would use."
        ),
    )
    docker_network: str = Field(
        default="bridge", description="The network that containers are attached to."
    )
    docker_cpus: float | None = Field(
        default=None, gt=0, le=10_000, description="How many CPUs each container may use."
    )
    docker_memory: ByteSize | None = Field(
        default=None, description="How much memory each container may use, such as `2GiB`."
    )
    docker_shm_size: ByteSize | None = Field(
        default=None,
        description="The size of each container's `/dev/shm`, such as `1GiB`. Browsers need it.",
    )
    coolify_api_url: str | None = _coolify(
        "coolify_api_url", "Coolify's address, such as `https://coolify.example`."
    )
    coolify_api_token: SecretStr | None = _coolify(
        "coolify_api_token", "An API token with the abilities read, write and deploy: `1|…`."
    )
    coolify_project_uuid: str | None = _coolify(
        "coolify_project_uuid", "The project in which botpool creates its applications."
    )
    coolify_environment_name: str = _coolify(
        "coolify_environment_name", "The environment of that project.", "production"
    )
    coolify_server_uuid: str | None = _coolify(
        "coolify_server_uuid", "The server that slots run on. Separate several with commas."
    )
    coolify_destination_uuid: str | None = _coolify(
        "coolify_destination_uuid",
        "The destination of each server, in the order of the servers. Needed if a server has"
        " several destinations.",
    )
    coolify_requests_per_minute: int | None = Field(
        default=None,
        ge=10,
        description=(
            "How many requests Coolify may count for the token's user in a minute before botpool"
            " waits. By default as many as Coolify allows, which it says with each answer."
        ),
    )
    coolify_bot_data: bool = Field(
        default=True,
        description=(
            "Whether each start gives its container `BOT_DATA` and a new token. If not, the slot"
            " keeps its token, and botpool looks at the container before each start."
        ),
    )
    kubernetes_clusters: str | None = Field(
        default=None,
        description=(
            "The clusters, separated by commas, each `name=kubeconfig#context/namespace`. Without"
            " `#context` it is the kubeconfig's current one, without `/namespace` the context's;"
            " without a kubeconfig it is the cluster that botpool runs in, which is the default."
        ),
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description=(
            "The secret that signs what callback URLs get in projects that have no secret of their"
            " own, such as the default project: `whsec_`, then 24 to 64 random bytes as base64. By"
            " default botpool makes one."
        ),
    )
    allow_private_callbacks: bool = Field(
        default=False, description="Whether callback URLs may lead to private addresses."
    )
    retention_days: int = Field(
        default=30, ge=1, description="For how many days ended bots and transitions are kept."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Less important log lines are not written."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )

    _containers: ContainerFile = PrivateAttr(default_factory=ContainerFile)

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
            raise ValueError("must be an http(s) URL, such as https://botpool.example")
        if url.path.rstrip("/").endswith("/api/v1"):
            raise ValueError("must not include /api/v1")
        return text.strip().rstrip("/")

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, text: str | None) -> str | None:
        try:
            TrustedProxies(text or "")
        except ValueError as error:
            raise ValueError(f"must be addresses and networks: {error}") from None
        return text

    @field_validator("path_prefix")
    @classmethod
    def _read_path_prefix(cls, text: str) -> str:
        prefix = text.strip().rstrip("/")
        if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", prefix):
            raise ValueError("must be a path, such as /botpool")
        return prefix

    @field_validator("warm_slots")
    @classmethod
    def _check_warm_slots(cls, text: str) -> str:
        read_warm_slots(text)
        return text

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
            raise ValueError("must be `whsec_` followed by 24 to 64 bytes as base64")
        return secret

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if self.default_queue_timeout_ms > self.max_queue_timeout_ms:
            raise ValueError(
                "BOTPOOL_DEFAULT_QUEUE_TIMEOUT_MS must not exceed BOTPOOL_MAX_QUEUE_TIMEOUT_MS"
            )
        return self

    @model_validator(mode="after")
    def _read_container_file(self) -> Self:
        if self.container_file is not None:
            try:
                self._containers = read_container_file(self.container_file)
            except ValueError as error:
                raise ValueError(f"BOTPOOL_CONTAINER_FILE: {error}") from None
        return self

    @property
    def admitted_deployments(self) -> int:
        """How many deployments of a host are begun before one of them has to be over.

        For botpool, a deployment is over when the bot is heard; for Coolify, before the bot boots.
        There, the next ones wait in Coolify's queue meanwhile, and its `concurrent_builds` decides
        how many run. A cluster of Kubernetes paces its starts itself.
        """
        if self.engine == "kubernetes":
            return _ANY_NUMBER
        return self.max_concurrent_deployments * (2 if self.engine == "coolify" else 1)

    @property
    def runtime_url(self) -> str:
        """The URL at which containers reach botpool."""
        return self.public_url or self.local_url

    @property
    def local_url(self) -> str:
        """The URL at which this machine reaches botpool. 0.0.0.0 and :: become loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def warm(self, platform: Platform) -> int:
        """How many slots of a platform are kept warm."""
        return read_warm_slots(self.warm_slots).get(platform, 0)

    def image(self, platform: Platform) -> str | None:
        """The image that new slots of a platform are made of."""
        images = {
            Platform.GOOGLE_MEET: self.image_google_meet,
            Platform.MICROSOFT_TEAMS: self.image_microsoft_teams,
            Platform.ZOOM: self.image_zoom,
        }
        return images[platform]

    def container_options(self, platform: Platform) -> ContainerOptions:
        """What the containers of a platform get beyond their image.

        The container file wins over the `docker_…` settings.
        """
        limits = {
            "cpus": self.docker_cpus,
            "memory": self.docker_memory,
            "shm_size": self.docker_shm_size,
        }
        return self._containers.options(platform, {"network": self.docker_network, **limits})

    @property
    def docker_options(self) -> dict[Platform, DockerOptions]:
        """How Docker makes the containers of each platform."""
        return {platform: self.container_options(platform).docker for platform in Platform}

    @property
    def never_pulled(self) -> set[str]:
        """The images that at least one platform says are never pulled."""
        images = {
            self.image(each)
            for each, docker in self.docker_options.items()
            if docker.pull == "never"
        }
        return {image for image in images if image is not None}

    def docker_keys(self, platform: Platform) -> set[str]:
        """The keys of the table `docker` that the container file sets for a platform."""
        return self._containers.docker_keys(platform)


def load_settings(**given: Any) -> Settings:
    """Read the settings from the environment; `given` values take precedence.

    Raises `SettingsInvalid`, which names what to fix and shows no secret.
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
    """The environment variable of a setting, given its name or one of its aliases."""
    return f"{_PREFIX}{name.upper().removeprefix(_PREFIX)}"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


def unknown_variables() -> dict[str, str | None]:
    """Every variable that looks like a setting but isn't, with the setting that may be meant."""
    known = [name.upper() for name in Settings.model_fields]
    old = [name.upper() for name in OLD_NAMES.values()]
    found: dict[str, str | None] = {}
    for variable in sorted(os.environ):
        prefix, name = variable[: len(_PREFIX)].upper(), variable[len(_PREFIX) :].upper()
        # A botpool that is started in a container finds what botpool sets there.
        if prefix == _PREFIX and name not in {*known, *old} and _PREFIX + name not in _NO_SETTINGS:
            near = _nearest(name, known)
            found[variable] = f"{_PREFIX}{near}" if near else None
    return found


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name of which each word is nearly the one at its place in this name, if any."""
    words = name.split("_")
    near = {
        other: min(map(_likeness, words, other.split("_")))
        for other in known
        if other.count("_") == name.count("_")
    }
    best = max(near, key=near.__getitem__, default=None)
    return best if best is not None and near[best] >= _NEAR else None


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


class EffectiveSetting(NamedTuple):
    """A setting as it is in force. A secret's value is not told, only whether there is one."""

    variable: str
    value: str
    source: str
    """The environment variable that it was read from, or `default`, or `given` at the start."""
    description: str


def effective_settings(settings: Settings) -> list[EffectiveSetting]:
    """Every setting, with where its value comes from."""
    present = {name.upper() for name, value in os.environ.items() if value}
    found = []
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [f"{_PREFIX}{name}"]
        variables = [str(each).upper() for each in names]
        value = getattr(settings, name)
        given = value != field.get_default(call_default_factory=True)
        source = next(
            (each for each in variables if each in present), "given" if given else "default"
        )
        told = "hidden" if isinstance(value, SecretStr) else value
        text = "" if told is None else str(told)
        found.append(EffectiveSetting(variables[0], text, source, field.description or ""))
    return found
