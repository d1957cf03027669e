"""One Docker host, as it describes itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botpool.doctor.folders import is_folder
from botpool.engines.docker.api import is_podman

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodocker import Docker


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerHost:
    """A host that answers: its client, and what Docker there says about itself."""

    name: str
    client: Docker
    version: Mapping[str, Any]
    info: Mapping[str, Any]

    @property
    def is_podman(self) -> bool:
        """Whether it is a Podman."""
        return is_podman(self.version)

    @property
    def product(self) -> str:
        """The name of the program."""
        return "Podman" if self.is_podman else "Docker"

    @property
    def root(self) -> Path:
        """The folder of its files."""
        return Path(self.info.get("DockerRootDir") or "/nowhere")

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, and not only its socket is here."""
        return self.client.docker_host.startswith("unix:") and is_folder(self.root)
