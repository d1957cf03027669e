"""Whether each platform has an image, and whether its name will stay the same image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.engines.base import EngineName
from botpool.engines.images import read_image
from botpool.states import Platform

if TYPE_CHECKING:
    from botpool.doctor.database import Known
    from botpool.doctor.findings import Check, Report
    from botpool.settings import Settings


async def examine_images(
    report: Report, settings: Settings, engine: str, known: Known | None
) -> None:
    """Check the image of each platform, for an engine that needs images."""
    async with report.check("image") as check:
        images = {platform: settings.image(platform) for platform in Platform}
        if not any(images.values()):
            names = ", ".join(image_setting(platform) for platform in Platform)
            check.problem("No platform has an image", f"Set one of {names}.")
            return
        for platform, image in images.items():
            if image is not None:
                _check_image(check, platform, image, engine)
            elif known is not None and platform in known.used:
                check.problem(
                    f"{platform} has slots or waiting bots, but no image",
                    f"Set {image_setting(platform)}.",
                )
        without = [platform for platform, image in images.items() if image is None]
        if without:
            check.ok(f"None for {', '.join(without)}: bots for {_them(without)} would fail")


def _check_image(check: Check, platform: Platform, image: str, engine: str) -> None:
    setting = image_setting(platform)
    found = f"{platform}: {image}"
    reference = read_image(image)
    if reference is None:
        check.problem(
            f"{found} is not the name of an image",
            f"Set {setting} to a name such as registry.example/meet-bot:7.",
        )
    elif reference.digest and engine == EngineName.COOLIFY:
        check.problem(
            f"{found} is pinned by its digest, and Coolify's clean-up deletes such images",
            f"Use an immutable tag in {setting}.",
        )
    elif reference.digest:
        check.warning(
            f"{found} is pinned by its digest, and `docker image prune` deletes such images",
            f"Use an immutable tag in {setting}.",
        )
    elif reference.tag in {None, "latest"}:
        check.warning(
            f"{found} may be another image tomorrow, and differ from host to host",
            f"Use an immutable tag, such as :7, in {setting}.",
        )
    else:
        check.ok(found)


def image_setting(platform: Platform) -> str:
    """The setting that names a platform's image."""
    return f"BOTPOOL_IMAGE_{platform.replace('-', '_').upper()}"


def _them(platforms: list[Platform]) -> str:
    return "it" if len(platforms) == 1 else "them"
