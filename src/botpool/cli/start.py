"""What every command begins with."""

from __future__ import annotations

import structlog

from botpool.logs import configure_logs
from botpool.settings import Settings, load_settings, unknown_variables

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


def start(**given: str | int) -> Settings:
    """Read the settings and set up the logs. Warns of variables that only look like settings."""
    settings = load_settings(**given)
    configure_logs(settings.log_level, settings.log_format)
    for name, meant in unknown_variables().items():
        hint = f": did you mean {meant}?" if meant else ""
        _log.warning(f"{name} is not a botpool setting{hint}")
    return settings
