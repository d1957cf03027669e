"""Coolify's clean-ups of a server: when they run, and which of the pool's images they delete.

An idle pool uses no image, so it is all about what a clean-up keeps. Of each application it keeps
two of the images whose reference begins with the application's image name, however long the rest.
Since 4.2.0, botpool asks for as many as its own applications need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, TypeAdapter

from botpool.doctor.images import image_setting
from botpool.engines.coolify.wire import ServerSettings, version_number
from botpool.engines.images import read_image
from botpool.models.slots import read_slot_name
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from botpool.doctor.coolify_access import Reader
    from botpool.doctor.findings import Check, Report
    from botpool.engines.coolify.wire import Application, Server
    from botpool.settings import Settings

_KEEPS_IMAGES_SINCE = version_number("4.0.0-beta.453")
_STOPS_GENTLY_SINCE = version_number("4.0.0-beta.467")
_KEEPS_ENOUGH_SINCE = version_number("4.2.0")
_KEPT = 2


class _Schedule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    docker_cleanup_frequency: str | None = None


_SCHEDULE = TypeAdapter(_Schedule)


async def examine_cleanup(
    report: Report,
    settings: Settings,
    reader: Reader,
    server: Server,
    listed: Sequence[Application] | None,
    version: str,
) -> None:
    """Check whether the clean-ups of a server delete the pool's images."""
    found = server.settings or ServerSettings()
    async with report.check("image clean-up") as check:
        schedule = await reader.read(f"/servers/{server.uuid}/docker-cleanup", _SCHEDULE)
        when = _when(found, schedule or _Schedule(), version)
        number = version_number(version)
        if number < _KEEPS_IMAGES_SINCE:
            check.warning(
                f"{server.name} deletes the image {when}",
                "Update Coolify to 4.0.0-beta.453 or later, which keeps the images of"
                " applications.",
            )
        elif found.disable_application_image_retention:
            check.warning(
                f"{server.name} deletes the image {when}",
                "Turn off `Disable application image retention` in the server's Docker Cleanup.",
            )
        else:
            here = [one for one in listed or [] if one.server in {None, server.uuid}]
            crowded = [*_crowded(settings, here, server.name, version)]
            for sentence, mend in crowded:
                check.warning(f"{sentence} when it cleans up: {when}", mend)
            if not crowded:
                check.ok(f"{server.name} keeps the images of applications; it cleans up {when}")


async def examine_tags(report: Report, settings: Settings) -> None:
    """Check whether an image has a tag that every clean-up deletes."""
    async with report.check("image clean-up") as check:
        ours = _images(settings)
        for platform, image in ours.items():
            _check_tag(check, platform, image, {*ours.values()})


def _check_tag(check: Check, platform: Platform, image: str, ours: set[str]) -> None:
    tag = image.rpartition(":")[2]
    base = image.removesuffix("-build")
    if tag.startswith("pr-") or (base != image and base not in ours):
        check.warning(
            f"{platform}: Coolify takes {image} for an image of a preview or a build, and every"
            " clean-up deletes it",
            f"Use a tag that doesn't begin with pr- or end with -build in"
            f" {image_setting(platform)}.",
        )


def _when(found: ServerSettings, schedule: _Schedule, version: str) -> str:
    """When clean-ups run."""
    when = []
    if version_number(version) < _STOPS_GENTLY_SINCE:
        when.append("with every stop")
    if found.force_docker_cleanup is not False:
        often = schedule.docker_cleanup_frequency
        when.append(f"on schedule ({often})" if often else "on schedule")
    threshold = found.docker_cleanup_threshold
    full = "nearly full" if threshold is None else f"{threshold} % full"
    when.append(f"when the disk is {full}")
    return ", ".join(when)


def _crowded(
    settings: Settings, here: Sequence[Application], server: str, version: str
) -> Iterator[tuple[str, str]]:
    """What is wrong if images share the beginning of their names, and how to mend it."""
    ours = {*_images(settings).values()}
    images = ours | {one.image for one in here if one.image}
    foreign = {
        one.docker_registry_image_name: one.name
        for one in here
        if one.docker_registry_image_name and read_slot_name(one.name, lenient=True) is None
    }
    names = dict(foreign)
    if version_number(version) < _KEEPS_ENOUGH_SINCE:
        names = {image.rpartition(":")[0]: "" for image in ours} | names
    for name, application in names.items():
        alike = sorted(image for image in images if _begins(image, name))
        if len(alike) <= _KEPT or ours.isdisjoint(alike):
            continue
        mend = (
            f"Let {application} keep {len(alike)} Docker images, in its settings in Coolify."
            if application
            else "Update Coolify to 4.2.0 or later, where botpool has all its images kept, or give"
            " each image a name that no other one's begins with."
        )
        yield f"{server} keeps {_KEPT} of {', '.join(alike)} and deletes the others", mend


def _images(settings: Settings) -> dict[Platform, str]:
    """The image of each platform, with its tag."""
    images = {}
    for platform in Platform:
        image = settings.image(platform)
        read = read_image(image) if image else None
        if read is not None and read.digest is None:
            images[platform] = f"{read.repository}:{read.tag or 'latest'}"
    return images


def _begins(image: str, name: str) -> bool:
    rest = image.removeprefix(name)
    return rest != image and "/" not in rest
