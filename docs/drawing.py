"""Drawings as SVG: boxes, arrows and words in the colours of a light and of a dark screen.

A drawing has a ground of its own, so that it can be read wherever it is shown, and a title and a
description for those who don't see it.
"""

from __future__ import annotations

from html import escape

_STYLE = """
.ground{fill:#fbfcfe;stroke:#d5dbe5}
.box{fill:#ffffff;stroke:#5b6b84;stroke-width:1.3}
.soft{fill:#eef2f8;stroke:#b4c0d2}
.good{fill:#dff3e6;stroke:#2f8a55}
.busy{fill:#dbe8fb;stroke:#2c62b8}
.warn{fill:#fdebd3;stroke:#b06a12}
.bad{fill:#fbdfe0;stroke:#b3363d}
.line{fill:none;stroke:#5b6b84;stroke-width:1.4}
.thin{fill:none;stroke:#8c99ad;stroke-width:1}
.back{fill:none;stroke:#b06a12;stroke-width:1.2}
.tip{fill:#5b6b84}
.tip-back{fill:#b06a12}
text{font:14px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1b2533}
.small{font-size:12px;fill:#4a586d}
.strong{font-weight:600}
.code{font:12.5px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (prefers-color-scheme:dark){
.ground{fill:#151b24;stroke:#323d4d}
.box{fill:#1d2531;stroke:#93a3bb}
.soft{fill:#222c3a;stroke:#4a5a70}
.good{fill:#17402a;stroke:#58b981}
.busy{fill:#1a365f;stroke:#6ea2ef}
.warn{fill:#4a3312;stroke:#dfa04a}
.bad{fill:#522327;stroke:#e5797f}
.line{stroke:#93a3bb}
.thin{stroke:#6d7c93}
.back{stroke:#dfa04a}
.tip{fill:#93a3bb}
.tip-back{fill:#dfa04a}
text{fill:#e8edf5}
.small{fill:#b3c0d2}
}
"""


class Drawing:
    """A drawing of this size, to which parts are added in the order in which they are painted."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._size = width, height
        self._words = title, description
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *, kind: str = "box") -> None:
        """A rectangle; `kind` is how it looks."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            ' rx="7"/>'
        )

    def text(
        self, x: float, y: float, words: str, *, kind: str = "", anchor: str = "middle"
    ) -> None:
        """A line of words whose baseline is at `y`."""
        chosen = f' class="{kind}"' if kind else ""
        self._parts.append(
            f'<text{chosen} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def label(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """A box with a name, and smaller lines below it."""
        self.box(x, y, width, height, kind=kind)
        middle = x + width / 2
        top = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            look = "small" if number else "strong"
            self.text(middle, top + 17 * number, line, kind=look)

    def line(self, path: str, *, kind: str = "line", tip: bool = True) -> None:
        """A path, as SVG has it; with an arrow's tip where it ends."""
        end = f' marker-end="url(#{"tip-back" if kind == "back" else "tip"})"' if tip else ""
        self._parts.append(f'<path class="{kind}" d="{path}"{end}/>')

    def svg(self) -> str:
        """The drawing."""
        width, height = self._size
        title, description = map(escape, self._words)
        tips = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path class="{name}" d="M0 0 8 4 0 8z"/></marker>'
            for name in ("tip", "tip-back")
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
                f' width="{width}" height="{height}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{title}</title>',
                f'<desc id="desc">{description}</desc>',
                f"<style>{_STYLE}</style>",
                f"<defs>{tips}</defs>",
                f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}"'
                ' rx="10"/>',
                *self._parts,
                "</svg>",
                "",
            ]
        )
