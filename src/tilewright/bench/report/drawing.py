"""Drawings from boxes, grids, arrows and words, as one SVG that suits a light and a dark page.

All lines and words have the colour of the page's text. Words that are wider than the given space, or that overlap other
words, raise an error. So no text extends beyond its box.
"""

import html
from dataclasses import dataclass, field

LETTER = {"normal": 0.56, "bold": 0.64}  # width of a letter divided by its height: larger than in most sans-serif fonts
BLUE, ORANGE, GREEN, PURPLE = "#2f81f7", "#d4762c", "#2da44e", "#a371f7"  # readable on white and on black
STYLE = "svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}"


@dataclass
class Drawing:
    """An SVG of width x height. title: the text that a screen reader speaks."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)
    words: list[tuple[float, float, float, float, str]] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, room: float = 0, size: int = 13, **style: str) -> None:
        """Words that begin at x, or are centred at x if anchor is "middle". room: the width that they may have."""
        anchor, colour, weight = (style.get(key, default) for key, default in DEFAULTS)
        wide = LETTER[weight] * size * len(words)
        left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        if (room and wide > room) or left < 0 or left + wide > self.width or not size <= y <= self.height:
            raise ValueError(f"{words!r} takes {wide:.0f} at ({x:.0f}, {y:.0f}) of {room or self.width:.0f}")
        box = left, y - 0.75 * size, left + wide, y + 0.2 * size, words
        for other in self.words:
            if box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]:
                raise ValueError(f"{words!r} lies over {other[4]!r}")
        self.words.append(box)
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{html.escape(words)}</text>'
        )

    def box(self, x: float, y: float, w: float, h: float, words: str = "", *, fill: str = "",
            strength: float = 0.25) -> None:  # fmt: skip
        """A rectangle with one line of words in its centre."""
        inside = f'fill="{fill}" fill-opacity="{strength}"' if fill else 'fill="none"'
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" {inside} stroke="currentColor"/>'
        )
        if words:
            self.text(x + w / 2, y + h / 2 + 4.5, words, room=w, anchor="middle")

    def grid(self, x: float, y: float, shape: tuple[int, int], cell: float, *, fill: str = "",
             marked: dict[tuple[int, int], str] | None = None) -> None:  # fmt: skip
        """Rows x columns of square cells. marked: (row, column) -> the colour of a cell."""
        rows, columns = shape
        cells = marked or {(i, j): fill for i in range(rows) for j in range(columns) if fill}
        for colour in dict.fromkeys(cells.values()):
            corners = [(x + j * cell, y + i * cell) for (i, j), own in cells.items() if own == colour]
            squares = "".join(f"M{left:.4g} {top:.4g}h{cell:.4g}v{cell:.4g}h-{cell:.4g}z" for left, top in corners)
            self.parts.append(f'<path d="{squares}" fill="{colour}" fill-opacity="0.45"/>')
        across = "".join(f"M{x:.4g} {y + i * cell:.4g}h{columns * cell:.4g}" for i in range(rows + 1))
        down = "".join(f"M{x + j * cell:.4g} {y:.4g}v{rows * cell:.4g}" for j in range(columns + 1))
        self.parts.append(f'<path d="{across}{down}" stroke="currentColor" stroke-opacity="0.45"/>')

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
