"""Settings come from the environment, and say what is wrong with it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from botpool.errors import SettingsInvalid
from botpool.settings import OLD_NAMES, Settings, load_settings, unknown_variables
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


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),  # noqa: S104
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:8000"),
        ("2001:db8::7", "http://[2001:db8::7]:8000"),
        ("botpool.example", "http://botpool.example:8000"),
    ],
)
def test_containers_are_told_an_address_at_which_this_machine_is_reached(
    host: str, url: str
) -> None:
    assert Settings(host=host).runtime_url == url
    assert Settings(host=host, public_url="https://x.example").runtime_url == "https://x.example"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("https://botpool.example", "https://botpool.example"),
        ("https://botpool.example/", "https://botpool.example"),
        (" http://10.0.0.2:8000/pool// ", "http://10.0.0.2:8000/pool"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_public_url_is_what_paths_can_be_put_behind(
    given: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_PUBLIC_URL", given)
    assert load_settings().public_url == read


@pytest.mark.parametrize(
    "wrong",
    [
        *("botpool.example", "botpool.example:8000", "ftp://botpool.example", "http://", "https:"),
        *("http://botpool:port", "http://botpool:0", "http://[::1", "http://a b", "/pool"),
        *("http://x/?key=hidden", "http://x/#top", "http://x/api/v1", "http://x/api/v1/"),
    ],
)
def test_a_public_url_that_can_t_be_called_is_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_PUBLIC_URL", wrong)
    with pytest.raises(SettingsInvalid, match=r"^BOTPOOL_PUBLIC_URL: must ") as raised:
        load_settings()
    assert "hidden" not in str(raised.value)


def test_a_log_level_may_be_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_LOG_LEVEL", "debug")
    assert load_settings().log_level == "DEBUG"
    monkeypatch.setenv("BOTPOOL_LOG_LEVEL", "loud")
    with pytest.raises(SettingsInvalid, match="BOTPOOL_LOG_LEVEL"):
        load_settings()


def test_a_variable_that_is_no_setting_is_found_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"BOTPOOL_PORT", "botpool_host", "BOTPOOL_COOLIFY_API_URL"}
    of_containers = {"BOTPOOL_URL", "BOTPOOL_SLOT_TOKEN"}
    misspelt = {
        "BOTPOOL_MAX_POLL_SIZE": "BOTPOOL_MAX_POOL_SIZE",
        "BOTPOOL_PROT": "BOTPOOL_PORT",
        "BOTPOOL_DOKCER_HOST": "BOTPOOL_DOCKER_HOSTS",
        "BOTPOOL_DATABASE_URI": "BOTPOOL_DATABASE_URL",
        # These are other words, however much they have in common with a setting.
        "BOTPOOL_DOCKER_ENV": None,
        "BOTPOOL_COOLIFY_SERVER_NAME": None,
        "BOTPOOL_LOG_FILE": None,
        "BOTPOOL_XYZZY": None,
    }
    for name in {*known, *of_containers, *misspelt}:
        monkeypatch.setenv(name, "1")
    found = unknown_variables()
    assert {name: found[name] for name in misspelt} == misspelt
    assert {*found}.isdisjoint(known | of_containers)


def test_no_message_has_words_of_pydantic_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_ADMIN_KEY", "short")
    with pytest.raises(SettingsInvalid, match=r"^BOTPOOL_ADMIN_KEY: must be 16 to 500"):
        load_settings()


@pytest.mark.parametrize(("name", "old_name"), OLD_NAMES.items())
def test_a_setting_that_was_renamed_is_still_read_by_its_old_name(
    name: str, old_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"BOTPOOL_{old_name.upper()}", "1234")
    assert getattr(load_settings(), name) == 1234
    assert f"BOTPOOL_{old_name.upper()}" not in unknown_variables()
    monkeypatch.setenv(f"BOTPOOL_{name.upper()}", "5678")
    assert getattr(load_settings(), name) == 5678


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8, 2001:db8::/32", "::1,127.0.0.1"])
def test_trusted_proxies_are_addresses_and_networks(text: str) -> None:
    assert load_settings(trusted_proxies=text).trusted_proxies == text


@pytest.mark.parametrize("text", ["proxy", "*", "10.0.0.1/8", "10.0.0.0/33"])
def test_a_trusted_proxy_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"^BOTPOOL_TRUSTED_PROXIES: must be addresses and"):
        load_settings(trusted_proxies=text)
