"""Engines are made from settings, or one sentence says what is wrong with those."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from botpool.engines import check_engine, lacks_images, make_engines
from botpool.engines.base import EngineName
from botpool.errors import SettingsInvalid
from botpool.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_every_engine_that_has_a_name_is_made(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        '{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "y"}}],'
        ' "clusters": [{"name": "y", "cluster": {"server": "https://y"}}]}'
    )
    settings = Settings(
        data_dir=tmp_path,
        coolify_api_url="https://coolify.example",
        coolify_api_token=SecretStr("1|secret"),
        coolify_project_uuid="project",
        coolify_server_uuid="server",
        kubernetes_clusters=f"a={tmp_path / 'config'}",
    )
    engines = make_engines(settings, "here")
    assert {*engines} == {*EngineName}
    assert [engine.name for engine in engines.values()] == [*engines]


def test_an_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    settings = Settings(engine="dokcer", data_dir=tmp_path)
    for refuse in (lambda: check_engine(settings), lambda: make_engines(settings, "here")):
        with pytest.raises(SettingsInvalid, match="'dokcer', but must be one of coolify, docker"):
            refuse()


@pytest.mark.parametrize("command", ["true", "sleep 3600", f"{sys.executable} -c 'pass'", ""])
def test_a_command_that_can_be_run_is_taken(command: str, tmp_path: Path) -> None:
    assert "process" in make_engines(Settings(process_command=command, data_dir=tmp_path), "here")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-program --fast", "'no-such-program', but there is no such program"),
        ("/no/such/program", "'/no/such/program', but there is no such program"),
        ("./bot.sh", "must begin with a program's name or an absolute path"),
        ("bot 'half", "is not a command: No closing quotation"),
    ],
)
def test_a_command_that_can_t_be_run_is_refused(command: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=f"BOTPOOL_PROCESS_COMMAND .*{why}"):
        make_engines(Settings(process_command=command, data_dir=tmp_path), "here")


@pytest.mark.parametrize(
    ("engine", "image", "lacks"),
    [
        ("docker", None, True),
        ("coolify", None, True),
        ("docker", "zoom-bot:7", False),
        ("process", None, False),
    ],
)
def test_an_engine_of_images_needs_one(engine: str, image: str | None, *, lacks: bool) -> None:
    assert lacks_images(Settings(engine=engine, image_zoom=image)) is lacks
