"""Which images the clean-up that runs each night removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tests.fakes.coolify.records import Application, Server

_KEPT = 2
"""Images of a name that are kept, if an application doesn't say otherwise."""


def swept(
    server: Server, applications: Collection[Application], built: Mapping[str, float]
) -> set[str]:
    """The images on a server that a clean-up tries to remove. One in use can't be.

    Each application keeps a few of all images whose reference begins with its image's name, those
    built last. What no application has a name for goes, and what has no tag.
    """
    named: set[str] = set()
    gone: set[str] = set()
    for application in applications:
        name = str(application.fields["docker_registry_image_name"])
        own = [image for image in server.images if _begins(image, name)]
        named.update(own)
        gone.update(_beyond(application, own, built, server))
    return gone | (server.images - named)


def _beyond(
    application: Application, own: list[str], built: Mapping[str, float], server: Server
) -> set[str]:
    """What an application doesn't keep."""
    keep = application.fields.get("docker_images_to_keep", _KEPT)
    if server.settings["disable_application_image_retention"]:
        keep = 0
    # Coolify asks for the container by the application's uuid: another name it doesn't find.
    current = {one.image for one in application.containers if one.name == application.uuid}
    kept = set(current)
    others = [one for one in own if one not in current and not _passing(one)]
    kept.update(sorted(others, key=lambda one: built.get(one, 0.0), reverse=True)[:keep])
    kept.update(one for one in own if one.removesuffix("-build") in kept)
    return {*own} - kept


def _begins(image: str, name: str) -> bool:
    rest = image.removeprefix(name)
    return rest != image and "/" not in rest and "@" not in rest


def _passing(image: str) -> bool:
    """Whether its tag is one that Coolify takes for its own, of a preview or a build."""
    tag = image.rpartition(":")[2]
    return tag.startswith("pr-") or tag.endswith("-build")
