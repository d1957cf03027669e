"""Image references, such as `registry.example:5000/team/bot:7`, and their parts."""

from __future__ import annotations

import re
from typing import NamedTuple

_REFERENCE = re.compile(
    r"(?P<repository>(?:(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?/)?[\w.-]+(?:/[\w.-]+)*)"
    r"(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>[a-z0-9+._-]+:[0-9a-f]{32,}))?",
    re.ASCII,
)


class ImageReference(NamedTuple):
    """An image: its repository (with its registry's host, if it has one), tag and digest."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def registry(self) -> str | None:
        """The host of its registry; `None` means the engine's default registry."""
        first, slash, _ = self.repository.partition("/")
        is_host = slash and ("." in first or ":" in first or first == "localhost")
        return first if is_host else None


def read_image(text: str) -> ImageReference | None:
    """The image that this text names; `None` if it is not an image reference."""
    found = _REFERENCE.fullmatch(text)
    return ImageReference(found["repository"], found["tag"], found["digest"]) if found else None
