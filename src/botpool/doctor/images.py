"""Whether each platform has an image, and one that stays what it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from botpool.states import Platform

if TYPE_CHECKING:
    from botpool.doctor.database import Known
    from botpool.doctor.findings import Check, Report
    from botpool.settings import Settings

_REFERENCE = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?[\w.-]+(?:/[\w.-]+)*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?", re.ASCII
)


async def examine_images(
    report: Report, settings: Settings, engine: str, known: Known | None
) -> None:
    """Look at the image of each platform, for an engine that needs one."""
    async with report.check("image") as check:
        images = {platform: settings.image(platform) for platform in Platform}
        if not any(images.values()):
            names = ", ".join(_setting(platform) for platform in Platform)
            check.problem("No platform has an image", f"Set one of {names}.")
            return
        for platform, image in images.items():
            if image is not None:
                _check_image(check, platform, image, engine)
            elif known is not None and platform in known.used:
                check.problem(
                    f"{platform} has slots or bots that wait, and no image",
                    f"Set {_setting(platform)}.",
                )
        without = [platform for platform, image in images.items() if image is None]
        if without:
            check.ok(f"None for {', '.join(without)}: bots of {_them(without)} would fail")


def _check_image(check: Check, platform: Platform, image: str, engine: str) -> None:
    setting = _setting(platform)
    found = f"{platform}: {image}"
    name, at, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not _REFERENCE.fullmatch(image):
        check.problem(f"{found} is no image", f"Write {setting} like registry.example/meet-bot:7.")
    elif at and engine == "coolify":
        check.problem(
            f"{found} is pinned by its digest, which Coolify throws away as unused",
            f"Use an immutable tag in {setting}.",
        )
    elif at:
        check.warning(
            f"{found} is pinned by its digest: `docker image prune` takes it for unused",
            f"Use an immutable tag in {setting}.",
        )
    elif tag in {"", "latest"}:
        check.warning(
            f"{found} may be another image tomorrow, and differ from host to host",
            f"Use immutable tags: write one, such as :7, in {setting}.",
        )
    else:
        check.ok(found)


def _setting(platform: Platform) -> str:
    return f"BOTPOOL_IMAGE_{platform.replace('-', '_').upper()}"


def _them(platforms: list[Platform]) -> str:
    return "it" if len(platforms) == 1 else "them"
