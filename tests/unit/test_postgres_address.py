"""A database's URL: what is wrong with it is told, and its password is never shown."""

from __future__ import annotations

import pytest

from botpool.errors import SettingsInvalid
from botpool.store.postgres.address import Address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db.example:5433/pool", "postgresql://db.example:5433/pool"),
        ("postgres://me:se%2Fcret@[::1]:5432/pool", "postgresql://[::1]:5432/pool"),
        ("postgresql://me:s@cret@db.example/pool", "postgresql://db.example/pool"),
        (
            "postgresql://me@/pool?host=/run/postgresql&port=5433&password=secret",
            "postgresql:///pool?host=/run/postgresql&port=5433",
        ),
        ("postgresql:///pool", "postgresql:///pool"),
        (
            "postgresql://me:secret@one,two:5433/pool?target_session_attrs=read-write",
            "postgresql://one,two:5433/pool",
        ),
    ],
)
def test_it_is_shown_without_its_password(url: str, shown: str) -> None:
    assert str(Address.read(url)) == shown


def test_each_server_has_a_url_with_all_the_rest() -> None:
    address = Address.read("postgresql://me:secret@one,two:5433/pool?target_session_attrs=primary")
    assert address.urls == (
        "postgresql://me:secret@one/pool?target_session_attrs=primary",
        "postgresql://me:secret@two:5433/pool?target_session_attrs=primary",
    )


def test_options_of_libpq_alone_are_not_taken_for_settings_of_the_server() -> None:
    url = "postgresql://me@one/pool?connect_timeout=10&sslmode=require&channel_binding=require"
    assert Address.read(url).urls == ("postgresql://me@one/pool?sslmode=require",)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@localhost/pool",
        "host=localhost password=secret dbname=pool",
        "postgresql://me:12/secret@localhost/pool",
        "postgresql://me:12#secret@localhost/pool",
        "postgresql://me:12?secret@localhost/pool",
        "postgresql://me:12?x=secret@localhost/pool",
        "postgresql://me:12[secret@localhost/pool",
    ],
)
def test_what_is_no_url_of_a_database_is_told_without_showing_it(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="must look like postgresql://") as raised:
        Address.read(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("sslmode=full", "sslmode must be one of disable, allow, prefer, require, "),
        ("target_session_attrs=standby", "must be one of any, primary, read-write"),
        ("sslrootcert=/no/such/file", "sslrootcert names /no/such/file, a file that this user"),
    ],
)
def test_an_option_that_can_t_be_is_told_by_its_name(option: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        Address.read(f"postgresql://me:secret@localhost/pool?{option}")
