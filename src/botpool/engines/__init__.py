"""Where containers run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from botpool.engines.base import EngineName
from botpool.engines.process.engine import ProcessEngine
from botpool.errors import SettingsInvalid
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from botpool.engines.base import Engine
    from botpool.settings import Settings

SAMPLE_BOT = (sys.executable, "-m", "botpool.bot.sample")

_MADE_OF_IMAGES = (EngineName.COOLIFY, EngineName.DOCKER, EngineName.KUBERNETES)


def check_engine(settings: Settings) -> None:
    """Raise `SettingsInvalid` unless the settings name an engine that can do what they ask for.

    Makes no engine.
    """
    if settings.engine not in [*EngineName]:
        names = ", ".join(sorted(EngineName))
        raise SettingsInvalid(f"BOTPOOL_ENGINE is {settings.engine!r}, but must be one of {names}.")
    if settings.engine == EngineName.COOLIFY:
        # Imported here because it takes long.
        from botpool.engines.coolify.settings import container_mistakes  # noqa: PLC0415

        if mistakes := container_mistakes(settings):
            raise SettingsInvalid(f"BOTPOOL_CONTAINER_FILE: {'; '.join(mistakes)}.")
    if settings.engine == EngineName.KUBERNETES:
        from botpool.engines.kubernetes.settings import check_templates  # noqa: PLC0415

        check_templates(settings)


def lacks_images(settings: Settings) -> bool:
    """Whether the engine of new slots needs images, and no platform has one."""
    return settings.engine in _MADE_OF_IMAGES and not any(map(settings.image, Platform))


def make_engines(
    settings: Settings, installation: str, workers: Callable[[], int] = lambda: 1
) -> Mapping[str, Engine]:
    """Every engine that slots of this botpool may be on, by name. Calls none of them yet.

    `workers` is how many replicas call engines now, this one included. Raises a `SetupError` for
    invalid settings.
    """
    check_engine(settings)
    # Imported here because they take long, and only a reconciler needs them.
    from botpool.engines.coolify.settings import coolify_engine  # noqa: PLC0415
    from botpool.engines.docker.engine import DockerEngine, docker_hosts  # noqa: PLC0415

    command = _process_command(settings)
    engines: dict[str, Engine] = {
        EngineName.PROCESS: ProcessEngine(settings.data_dir / "slots" / installation, command),
        EngineName.DOCKER: DockerEngine(
            docker_hosts(settings.docker_hosts),
            installation=installation,
            options=settings.docker_options,
            never_pulled=settings.never_pulled,
        ),
    }
    if settings.engine == EngineName.COOLIFY or settings.coolify_api_url is not None:
        engines[EngineName.COOLIFY] = coolify_engine(settings, installation, workers=workers)
    if settings.engine == EngineName.KUBERNETES or settings.kubernetes_clusters is not None:
        from botpool.engines.kubernetes.settings import kubernetes_engine  # noqa: PLC0415

        engines[EngineName.KUBERNETES] = kubernetes_engine(settings, installation)
    return engines


async def try_out(engine: Engine) -> None:
    """Ask an engine whether it would make containers as the settings say.

    Raises `SettingsInvalid` if it says that it wouldn't. Only a cluster can say that before it is
    asked to.
    """
    if engine.name == EngineName.KUBERNETES:
        from botpool.engines.kubernetes.engine import KubernetesEngine  # noqa: PLC0415

        if isinstance(engine, KubernetesEngine):
            await engine.try_out()


def _process_command(settings: Settings) -> Sequence[str]:
    try:
        command = shlex.split(settings.process_command or "")
    except ValueError as error:
        raise SettingsInvalid(f"BOTPOOL_PROCESS_COMMAND is not a command: {error}.") from None
    if not command:
        return SAMPLE_BOT
    # The command runs in a slot's folder, so a path relative to this folder would not be found.
    if "/" in command[0] and not Path(command[0]).is_absolute():
        raise SettingsInvalid(
            "BOTPOOL_PROCESS_COMMAND must begin with a program's name or an absolute path."
        )
    if shutil.which(command[0]) is None:
        raise SettingsInvalid(
            f"BOTPOOL_PROCESS_COMMAND begins with {command[0]!r}, but there is no such program."
        )
    return command
