"""The docs as a site, for Sphinx: `make docs` builds it into site/. It loads nothing from outside.

The pages are those that a code host shows: no directive of Sphinx stands in them. So the navigation
is here. Every link and anchor is checked, and so is that each page is in the navigation.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

NAVIGATION = {
    "Begin": ["docs/quickstart"],
    "How to": [
        "docs/how-to/write-a-bot",
        "docs/how-to/images",
        "docs/how-to/docker",
        "docs/how-to/hosts",
        "docs/how-to/coolify",
        "docs/how-to/kubernetes",
        "docs/how-to/postgresql",
        "docs/how-to/deploy",
        "docs/how-to/proxy",
        "docs/how-to/scale-out",
        "docs/how-to/size",
        "docs/how-to/backup",
        "docs/how-to/upgrade",
        "docs/how-to/tune",
        "docs/how-to/move",
        "docs/how-to/webhooks",
        "docs/how-to/projects",
        "docs/how-to/access",
        "docs/how-to/dashboard",
        "docs/how-to/operate",
        "docs/how-to/troubles",
        "docs/how-to/monitor",
        "docs/how-to/doctor",
    ],
    "Reference": [
        "docs/reference/settings",
        "docs/reference/container-file",
        "docs/reference/api",
        "docs/reference/cli",
        "docs/reference/metrics",
        "docs/reference/states",
    ],
    "Concepts": [
        "docs/concepts/pool",
        "docs/concepts/engines",
        "docs/concepts/reconciler",
        "docs/concepts/reliability",
    ],
    "About": [
        "docs/compare",
        "docs/architecture",
        "bench/README",
        "README",
        "CONTRIBUTING",
        "CHANGELOG",
    ],
}
"""Every page but the first, in the order in which the site lists them."""

ROOT = Path(__file__).parents[1]

project = "botpool"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**.md", "bench/*.md"]
exclude_patterns = [".venv", ".git", "site", "src", "tests", "**/node_modules"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "botpool"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

_FOLDER = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)\)")


def setup(app: Sphinx) -> None:
    """Change what is read where a site needs more than a code host, or has less."""
    app.connect("source-read", _read)
    app.connect("build-finished", _built)


def _read(_: Sphinx, name: str, source: list[str]) -> None:
    """Name the pages of the site on its first one. Of a link to a folder only the text stays."""
    folder = (ROOT / name).parent

    def led(link: re.Match[str]) -> str:
        return link["text"] if (folder / link["path"]).is_dir() else link[0]

    source[0] = _FOLDER.sub(led, source[0])
    if name == root_doc:
        source[0] += "".join(
            "\n```{toctree}\n:hidden:\n:caption: "
            + caption
            + "\n\n"
            + "\n".join(f"/{page}" for page in pages)
            + "\n```\n"
            for caption, pages in NAVIGATION.items()
        )


def _built(app: Sphinx, error: Exception | None) -> None:
    """Let the site begin at index.html, and have the pictures that pages show by HTML."""
    if error is None:
        shutil.copytree(
            ROOT / "docs/pictures", Path(app.outdir) / "docs/pictures", dirs_exist_ok=True
        )
        (Path(app.outdir) / "index.html").write_text(
            '<!doctype html><meta http-equiv="refresh" content="0; url=docs/README.html">\n'
            '<title>botpool</title><a href="docs/README.html">botpool</a>\n',
            encoding="utf-8",
        )
