"""Where containers run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from botpool.engines.process import ProcessEngine
from botpool.errors import SettingsInvalid
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from botpool.engines.base import Engine
    from botpool.settings import Settings

SAMPLE_BOT = (sys.executable, "-m", "botpool.bot.sample")

_NAMES = ("coolify", "docker", "process")
_MADE_OF_IMAGES = ("coolify", "docker")


def check_engine(settings: Settings) -> None:
    """Raise `SettingsInvalid` unless new slots have an engine. It is not made for that."""
    if settings.engine not in _NAMES:
        names = ", ".join(_NAMES)
        raise SettingsInvalid(f"BOTPOOL_ENGINE is {settings.engine!r}, and must be one of {names}.")


def lacks_images(settings: Settings) -> bool:
    """Whether no platform has an image that its new slots could be made of, and needs one."""
    return settings.engine in _MADE_OF_IMAGES and not any(map(settings.image, Platform))


def make_engines(settings: Settings, installation: str) -> Mapping[str, Engine]:
    """Every engine that slots of this botpool may be on, by name. None is asked for anything yet.

    Raises a `SetupError` for settings that can't be used.
    """
    check_engine(settings)
    # Here, because they take long to import, and only a reconciler needs them.
    from botpool.engines.coolify_settings import coolify_engine  # noqa: PLC0415
    from botpool.engines.docker import DockerEngine, docker_hosts  # noqa: PLC0415

    command = _process_command(settings)
    engines: dict[str, Engine] = {
        "process": ProcessEngine(settings.data_dir / "slots" / installation, command),
        "docker": DockerEngine(
            docker_hosts(settings.docker_hosts),
            installation=installation,
            network=settings.docker_network,
            cpus=settings.docker_cpus,
            memory=settings.docker_memory,
            shm_size=settings.docker_shm_size,
        ),
    }
    if settings.engine == "coolify" or settings.coolify_api_url is not None:
        engines["coolify"] = coolify_engine(settings, installation)
    return engines


def _process_command(settings: Settings) -> Sequence[str]:
    try:
        command = shlex.split(settings.process_command or "")
    except ValueError as error:
        raise SettingsInvalid(f"BOTPOOL_PROCESS_COMMAND is no command: {error}.") from None
    if not command:
        return SAMPLE_BOT
    # It runs in a folder of its own: what is relative to this one would not be found there.
    if "/" in command[0] and not Path(command[0]).is_absolute():
        raise SettingsInvalid("BOTPOOL_PROCESS_COMMAND must begin with a name or a whole path.")
    if shutil.which(command[0]) is None:
        raise SettingsInvalid(
            f"BOTPOOL_PROCESS_COMMAND begins with {command[0]!r}, and there is no such program."
        )
    return command
