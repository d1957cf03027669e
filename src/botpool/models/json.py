"""A JSON object."""

from typing import Any

Json = dict[str, Any]
