"""What the drawings are made of: boxes, grids, arrows and words in one SVG that fits a light and a dark page.

All lines and words have the colour of the page's text. A word that is wider than the space that its caller gives it
is an error, so no text leaves its box.
"""

import html
from dataclasses import dataclass, field

LETTER = 0.56  # width of a letter over its height: more than a sans-serif font takes on average
BLUE, ORANGE, GREEN, PURPLE = "#2f81f7", "#d4762c", "#2da44e", "#a371f7"  # readable on white and on black
STYLE = "svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}"


@dataclass
class Drawing:
    """An SVG of width x height. title: what a screen reader says."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, room: float = 0, size: int = 13, **style: str) -> None:
        """Words from x on, or around x where anchor is "middle". room: the width that they may take."""
        anchor, colour, weight = (style.get(key, default) for key, default in DEFAULTS)
        wide = LETTER * size * len(words)
        left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        if (room and wide > room) or left < 0 or left + wide > self.width or not size <= y <= self.height:
            raise ValueError(f"{words!r} takes {wide:.0f} at ({x:.0f}, {y:.0f}) of {room or self.width:.0f}")
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{html.escape(words)}</text>'
        )

    def box(self, x: float, y: float, w: float, h: float, words: str = "", *, fill: str = "", strength: float = 0.25,
            dashed: bool = False) -> None:  # fmt: skip
        """A rectangle with one line of words in its middle."""
        inside = f'fill="{fill}" fill-opacity="{strength}"' if fill else 'fill="none"'
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" {inside} stroke="currentColor"{dash}/>'
        )
        if words:
            self.text(x + w / 2, y + h / 2 + 4.5, words, room=w, anchor="middle")

    def grid(self, x: float, y: float, shape: tuple[int, int], cell: float, *, fill: str = "",
             marked: dict[tuple[int, int], str] | None = None) -> None:  # fmt: skip
        """Rows x columns of square cells. marked: (row, column) -> colour of a cell."""
        rows, columns = shape
        for i in range(rows):
            for j in range(columns):
                colour = (marked or {}).get((i, j), fill)
                inside = f'fill="{colour}" fill-opacity="0.45"' if colour else 'fill="none"'
                self.parts.append(
                    f'<rect x="{x + j * cell:.1f}" y="{y + i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" '
                    f'{inside} stroke="currentColor" stroke-opacity="0.45"/>'
                )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = "currentColor") -> None:
        """A straight line with a head at its end."""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.6" '
            'marker-end="url(#head)"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = "currentColor") -> None:
        """A straight line."""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.6"/>'
        )

    def svg(self) -> str:
        """The file's text."""
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
        )
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        body = "\n".join([f"<title>{html.escape(self.title)}</title>", f"<style>{STYLE}</style>", head, *self.parts])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">\n'
            f"{body}\n</svg>\n"
        )


DEFAULTS = (("anchor", "start"), ("colour", "currentColor"), ("weight", "normal"))
