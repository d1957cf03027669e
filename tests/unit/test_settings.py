"""Settings come from the environment, and say what is wrong with it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from botpool.errors import SettingsInvalid
from botpool.settings import Settings, load_settings
from botpool.states import Platform


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    assert settings.max_pool_size == 100
    assert settings.default_queue_timeout_ms == 300_000
    assert settings.max_queue_timeout_ms == 600_000
    assert settings.engine == "process"


def test_each_platform_has_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform in Platform:
        name = f"BOTPOOL_IMAGE_{platform.upper().replace('-', '_')}"
        monkeypatch.setenv(name, f"registry/{platform}:1")
    settings = load_settings()
    assert [settings.image(platform) for platform in Platform] == [
        f"registry/{platform}:1" for platform in Platform
    ]


def test_a_wrong_value_is_named_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_MAX_POOL_SIZE", "secret")
    monkeypatch.setenv("BOTPOOL_RETENTION_DAYS", "0")
    with pytest.raises(SettingsInvalid) as raised:
        load_settings()
    message = str(raised.value)
    assert "BOTPOOL_MAX_POOL_SIZE" in message
    assert "BOTPOOL_RETENTION_DAYS" in message
    assert "secret" not in message


def test_the_password_of_the_database_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_DATABASE_URL", "postgresql://me:hidden@host/pool")
    assert "hidden" not in repr(load_settings())


def test_a_webhook_secret_is_24_to_64_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (24, 25, 64):
        secret = f"whsec_{b64encode(bytes(size)).decode()}"
        monkeypatch.setenv("BOTPOOL_WEBHOOK_SECRET", secret)
        assert secret not in repr(load_settings())
    for wrong in ("whsec_" + "A" * 31, "whsec_" + "A" * 33, "A" * 32, "whsec_" + "hidden?" * 5):
        monkeypatch.setenv("BOTPOOL_WEBHOOK_SECRET", wrong)
        with pytest.raises(SettingsInvalid, match="BOTPOOL_WEBHOOK_SECRET") as raised:
            load_settings()
        assert wrong not in str(raised.value)
