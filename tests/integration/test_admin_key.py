"""The admin's key, from the first start on."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from botpool.access.keys import Keys
from botpool.errors import SettingsInvalid
from botpool.settings import Settings, load_settings
from botpool.states import Role
from botpool.store import Store, connect
from tests.conftest import new_database

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scene import Scene

GIVEN = "a-key-that-an-operator-thought-up"


@pytest.fixture
def keys(scene: Scene, tmp_path: Path) -> Keys:
    return Keys(scene.store, Settings(data_dir=tmp_path))


async def test_the_first_start_makes_an_admin_key_that_only_its_owner_can_read(
    keys: Keys, tmp_path: Path
) -> None:
    key = await keys.ensure_admin_key()
    file = tmp_path / "admin.key"
    assert file.read_text() == f"{key}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = await keys.authenticate(key)
    assert found
    assert (found.name, found.role, found.prefix) == ("admin", Role.ADMIN, key[:15])
    assert {path.name for path in tmp_path.iterdir()} == {"admin.key", "admin.lock"}


async def test_replicas_that_start_at_once_make_one_admin_key(
    database_url: str, scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    settings = Settings(data_dir=folder)
    async with connect(database_url) as database:
        replicas = [Keys(Store(database), settings) for _ in range(8)]
        made = await asyncio.gather(*(replica.ensure_admin_key() for replica in replicas))
    assert set(made) == {(folder / "admin.key").read_text().strip()}
    assert len(await scene.store.keys.all()) == 1
    assert stat.S_IMODE(folder.stat().st_mode) & 0o066 == 0


async def test_a_later_start_finds_the_same_key(scene: Scene, keys: Keys) -> None:
    assert await keys.ensure_admin_key() == await keys.ensure_admin_key()
    assert len(await scene.store.keys.all()) == 1


async def test_a_new_database_gets_to_know_the_key_in_the_file(
    server: str, keys: Keys, tmp_path: Path
) -> None:
    key = await keys.ensure_admin_key()
    async with new_database(server) as url, connect(url) as database:
        another = Keys(Store(database), Settings(data_dir=tmp_path))
        assert await another.ensure_admin_key() == key
        found = await another.authenticate(key)
    assert found
    assert (found.name, found.role) == ("admin", Role.ADMIN)


async def test_a_revoked_key_in_the_file_makes_way_for_another(
    scene: Scene, keys: Keys, tmp_path: Path
) -> None:
    old = await keys.ensure_admin_key()
    await keys.revoke((await scene.store.keys.all())[0].id)
    replicas = [Keys(scene.store, Settings(data_dir=tmp_path)) for _ in range(4)]
    (new,) = set(await asyncio.gather(*(replica.ensure_admin_key() for replica in replicas)))
    assert new != old
    assert (tmp_path / "admin.key").read_text() == f"{new}\n"
    assert await keys.authenticate(old) is None
    assert [bool(key.expires_at) for key in await scene.store.keys.all()] == [True, False]


async def test_a_setting_gives_the_admin_key_and_no_letter_of_it_is_kept(
    scene: Scene, tmp_path: Path
) -> None:
    keys = Keys(scene.store, Settings(data_dir=tmp_path, admin_key=SecretStr(GIVEN)))
    assert await keys.ensure_admin_key() == GIVEN
    assert await keys.ensure_admin_key() == GIVEN
    assert list(tmp_path.iterdir()) == []
    (found,) = await scene.store.keys.all()
    assert (found.name, found.role, found.prefix) == ("admin", Role.ADMIN, "")
    assert await keys.authenticate(GIVEN)


@pytest.mark.parametrize("why", ["revoked", "client"])
async def test_a_setting_can_not_give_what_opens_nothing_or_less(scene: Scene, why: str) -> None:
    keys = Keys(scene.store, Settings(admin_key=SecretStr(GIVEN)))
    role = Role.CLIENT if why == "client" else Role.ADMIN
    key = await scene.store.keys.add(
        "notes",
        role,
        1 if role is Role.CLIENT else None,
        hashlib.sha256(GIVEN.encode()).digest(),
        prefix="",
    )
    if why == "revoked":
        await keys.revoke(key.id)
    with pytest.raises(SettingsInvalid, match="is a revoked key, or not an admin's") as raised:
        await keys.ensure_admin_key()
    assert GIVEN not in str(raised.value)


@pytest.mark.parametrize("key", ["fifteen-letters", "with a space in it", "ключключключключ"])
def test_an_admin_key_that_is_too_weak_or_fits_no_header_is_refused(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("BOTPOOL_ADMIN_KEY", key)
    with pytest.raises(SettingsInvalid, match=r"BOTPOOL_ADMIN_KEY: .*16 to 500") as raised:
        load_settings()
    assert key not in str(raised.value)


def test_an_admin_key_of_sixteen_letters_is_taken_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOTPOOL_ADMIN_KEY", "sixteen-letters!")
    assert "sixteen" not in repr(load_settings())


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 20])
async def test_a_file_that_holds_no_key_is_one_sentence(
    keys: Keys, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "admin.key").write_bytes(content)
    with pytest.raises(
        SettingsInvalid, match=r"admin\.key doesn't contain a key.*: remove the file\.$"
    ):
        await keys.ensure_admin_key()
    assert (tmp_path / "admin.key").read_bytes() == content


async def test_a_folder_that_can_not_be_used_is_one_sentence(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    keys = Keys(scene.store, Settings(data_dir=tmp_path / "file"))
    with pytest.raises(SettingsInvalid, match="BOTPOOL_ADMIN_KEY") as raised:
        await keys.ensure_admin_key()
    assert str(raised.value).startswith(f"{tmp_path}/file/admin.key can't be used: File exists;")
