"""Drawing in SVG: colours for a light and a dark theme, text, lines, logarithmic axes.

Colours are CSS classes: `fill-cpu` fills with the colour "cpu". A page defines the classes with its own variables. A
file that is shown alone contains the rules for both themes (`standalone`).
"""

import html
import math
import re
from dataclasses import dataclass

PALETTE = {  # name -> (light, dark)
    "page": ("#f7f5f0", "#111317"), "paper": ("#fffefb", "#191c22"), "ink": ("#1d1f24", "#ebe8e1"),
    "faint": ("#666a73", "#a0a5b0"), "grid": ("#e6e2d9", "#2c313a"), "ghost": ("#d3cfc5", "#3f4550"),
    "cpu": ("#2b62a8", "#76abee"), "simt": ("#17806b", "#4fc9ad"), "tile": ("#7d46b0", "#bf93ee"),
    "vendor": ("#955c05", "#e3ab4f"), "ours": ("#2b62a8", "#76abee"), "peer": ("#9a9ca3", "#757b87"),
    "roof": ("#c0392b", "#ff8a73"),
    "float64": ("#8c2f57", "#ee8fb8"), "float32": ("#2b62a8", "#76abee"), "tf32": ("#17806b", "#4fc9ad"),
    "bfloat16": ("#7d46b0", "#bf93ee"),
    "float16": ("#955c05", "#e3ab4f"),
}  # fmt: skip
HEAD = '<svg xmlns="http://www.w3.org/2000/svg" class="tilewright"'  # each figure begins so
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
GLYPH = 0.62  # width of a character divided by the font size: no common system font is wider, so text fits


def text(x: float, y: float, words: str, kind: str, *, colour: str = "ink", anchor: str = "start") -> str:
    """One line of text. kind: "title", "label", "axis" or "axis name": the classes that set the font."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind} fill-{colour}" {where}>{html.escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> str:
    """A straight line. extra: further attributes."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="line-{colour}" {ends}{extra}/>'


def wrapped(words: str, width: float, size: float) -> list[str]:
    """The words in lines that fit into `width` with a font of `size` pixels."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(longer) * GLYPH * size > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def figure(width: float, height: float, title: str, parts: list[str]) -> str:
    """The SVG element, without the rules of its classes, which a page has."""
    label = html.escape(title, quote=True)
    frame = f'<rect class="fill-paper" width="{width:.0f}" height="{height:.0f}" rx="8"/>'
    head = f'{HEAD} viewBox="0 0 {width:.0f} {height:.0f}"'
    size = f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{label}"'
    return "\n".join([f"{head} {size}>", frame, *parts, "</svg>", ""])


RULES = f"""text {{ font-family: {FONT}; font-size: 12px; }}
text {{ stroke-width: 3px; stroke-linejoin: round; paint-order: stroke; }}
.title {{ font-size: 15px; font-weight: 600; }} .axis {{ font-size: 11px; }}"""


def standalone(svg: str) -> str:
    """The figure with its own rules: light, or dark if the reader's system is dark."""
    used = [name for name in PALETTE if re.search(rf"\b(fill|line)-{name}\b", svg)]

    def colours(theme: int) -> str:
        of = {name: PALETTE[name][theme] for name in used}
        rules = [
            f".fill-{name} {{ fill: {colour}; }} .line-{name} {{ stroke: {colour}; }}" for name, colour in of.items()
        ]
        return "\n".join([*rules, f"text {{ stroke: {of['paper']}; }}"])

    dark = f"@media (prefers-color-scheme: dark) {{\n{colours(1)}\n}}"
    head, end, rest = svg.partition(">\n")
    return f"{head}{end}<style>\n{RULES}\n{colours(0)}\n{dark}\n</style>\n{rest}"


def page_rules() -> str:
    """CSS variables of both themes, and the rules for the figures of a page that uses them."""
    variables = " ".join(f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in PALETTE.items())
    rules = [f".fill-{name} {{ fill: var(--{name}); }} .line-{name} {{ stroke: var(--{name}); }}" for name in PALETTE]
    return "\n".join([f":root {{ {variables} }}", RULES, "text { stroke: var(--paper); }", *rules])


def short(value: float) -> str:
    """A value of an axis: 1,000 as "1k", a million as "1M"."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class LogAxis:
    """Maps `low` to `high` onto the pixels `start` to `end`, logarithmically."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: list[float], start: float, end: float) -> "LogAxis":
        """An axis with a range a little larger than that of the values."""
        return cls(min(values) / 1.5, max(values) * 1.5, start, end)

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """The powers of ten in the range, and also 2 and 5 times them if the range is short."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
        return [step * 10.0**i for i in decades for step in steps if self.low <= step * 10.0**i <= self.high]

    def few(self) -> list[float]:
        """At most seven of the ticks, evenly spaced, so that their labels do not touch."""
        ticks = self.ticks()
        return ticks[:: math.ceil(len(ticks) / 7)]
