"""Every setting, with its default. Environment variables with the prefix `BOTPOOL_`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from botpool.errors import SettingsInvalid
from botpool.states import Platform

Milliseconds = Annotated[int, Field(gt=0, le=2**31 - 1)]


class Settings(BaseSettings):
    """How this botpool is set up. Read once, then handed on."""

    model_config = SettingsConfigDict(env_prefix="BOTPOOL_", env_ignore_empty=True, frozen=True)

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
    retention_days: int = Field(
        default=30, ge=1, description="How long ended bots and transitions are kept."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="The least important log line that is written."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )

    @model_validator(mode="after")
    def _check_timeouts(self) -> Self:
        if self.default_queue_timeout_ms > self.max_queue_timeout_ms:
            raise ValueError(
                "BOTPOOL_DEFAULT_QUEUE_TIMEOUT_MS must be at most BOTPOOL_MAX_QUEUE_TIMEOUT_MS"
            )
        return self

    def image(self, platform: Platform) -> str | None:
        """The image that new slots of a platform are made of."""
        images = {
            Platform.GOOGLE_MEET: self.image_google_meet,
            Platform.MICROSOFT_TEAMS: self.image_microsoft_teams,
            Platform.ZOOM: self.image_zoom,
        }
        return images[platform]


def load_settings() -> Settings:
    """Read the environment. Raises `SettingsInvalid`, which names what to mend and no secret."""
    try:
        return Settings()
    except ValidationError as error:
        problems = "; ".join(
            ": ".join(
                [*(f"BOTPOOL_{str(name).upper()}" for name in problem["loc"]), problem["msg"]]
            )
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise SettingsInvalid(f"{problems}.") from None
