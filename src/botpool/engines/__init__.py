"""Where containers run."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from botpool.engines.process import ProcessEngine
from botpool.errors import SettingsInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botpool.engines.base import Engine
    from botpool.settings import Settings

SAMPLE_BOT = (sys.executable, "-m", "botpool.bot.sample")


def make_engines(settings: Settings, installation: str) -> Mapping[str, Engine]:
    """Every engine that slots of this botpool may be on, by name. None is asked for anything yet.

    Raises a `SetupError` for settings that can't be used.
    """
    # Here, because they take long to import, and only a reconciler needs them.
    from botpool.engines.coolify_settings import coolify_engine  # noqa: PLC0415
    from botpool.engines.docker import DockerEngine, docker_hosts  # noqa: PLC0415

    command = shlex.split(settings.process_command or "") or SAMPLE_BOT
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
    if settings.engine not in engines:
        names = ", ".join(sorted({*engines, "coolify"}))
        raise SettingsInvalid(f"BOTPOOL_ENGINE is {settings.engine!r}, and must be one of {names}.")
    return engines
