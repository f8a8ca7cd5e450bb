"""MkDocs hook: links whose title begins with `rung:`, `factor:` or `measured:` become what was measured.

    [the rung's row](../../src/tilewright/ops/matmul/ladder.py "rung: cpu.reordered")
    ... is [a measured factor](../../results/amd-epyc-zen5-2c/matmul.csv "factor: cpu.reordered") times as fast ...
    [the measured ladder](../results/matmul.md "measured: matmul")

GitHub shows the links. The site shows, in this order: the idea that the ladder declares and a table of the rung's
rates; the factor over the rung below; the bars of every machine. All figures are read from `results/`; none is typed
in a page. A rung that the ladder does not have stops the build.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.bench.results import Row, one_session, read
from tilewright.ops.core.ladder import Ladder, Rung

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
CARD = re.compile(r'^\[[^\]]+\]\(\S*ops/(?P<op>\w+)/ladder\.py "rung: (?P<rung>\S+)"\)$', re.MULTILINE)
FACTOR = re.compile(r'\[[^\]]+\]\(\S*results/(?P<machine>[\w-]+)/(?P<op>\w+)\.csv "factor: (?P<rung>\S+)"\)')
BARS = re.compile(r'^\[[^\]]+\]\((?P<target>\S+) "measured: (?P<op>\w+)"\)$', re.MULTILINE)
EXAMPLES = {  # words in the names of the sizes that a page explains; elsewhere the size with the most rungs is taken
    "attention": ("1024of1024",),
    "batchnorm": ("32x32x32x64",),
    "conv3d": ("256x256x256-3x3x3-constant", "512x512x512-5x5x5-constant"),
    "conv_transpose2d": ("16x16x128-64",),
    "elementwise": ("gelu_tanh",),
    "logprob": ("512x50257",),
    "matmul": ("1024x2304x768", "4096x4096x4096"),
    "matmul_argmax": ("512x50257", "6400x50257"),
    "sample": ("50257-spread3-p0.9",),
    "softmax": ("64x50257", "65536x1024"),
}

MANIFOLD = 1.5  # share of the roof from which a factor is shown: less work than the direct way, or other units
COLUMNS = ("machine and case", "x the rung below", "rate", "of the roof")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every such link of a page of docs/learn."""
    return with_results(markdown) if page.file.src_uri.startswith("learn/") else markdown


def with_results(markdown: str) -> str:
    """The page with cards, factors and bars instead of the links."""
    markdown = CARD.sub(lambda match: card(match["op"], match["rung"]), markdown)
    markdown = FACTOR.sub(lambda match: factor(match["machine"], match["op"], match["rung"]), markdown)
    markdown = BARS.sub(lambda match: bars(match["op"], match["target"]), markdown)
    if left := re.search(r'^.*"(rung|factor|measured):.*$', markdown, re.MULTILINE):
        raise LookupError(f"this names no rung, factor or ladder as a link has to: {left[0]}")
    return markdown


@cache
def _ladder(op: str) -> Ladder:
    ladder: Ladder = import_module(f"tilewright.ops.{op}.ladder").ladder
    return ladder


@cache
def _rows() -> dict[tuple[str, str, str], list[Row]]:
    """(operation, machine, dtype) -> its rows."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in read(RESULTS):
        found.setdefault((row.op, row.machine, row.dtype), []).append(row)
    return found


def examples(op: str, name: str) -> Iterator[Row]:
    """The row of a rung that teaches it best, for each machine and dtype: of one session and the fewest threads.

    The session is the one that `make report` shows, or the latest that has the rung.
    """
    ladder = _ladder(op)
    for some in (rows for key, rows in _rows().items() if key[0] == op):
        own = one_session(some, ladder.rungs)
        if all(row.rung != name for row in own):
            latest = max((row.origin for row in some if row.rung == name), default=None)
            own = [row for row in some if row.origin == latest]
        if shown := [row for row in own if row.rung == name]:
            yield _example(op, shown, own)


def _example(op: str, shown: list[Row], own: list[Row]) -> Row:
    """Of a rung's rows the one to show: few threads, a size that the page explains, the most rungs measured there."""
    rungs = Counter(row.climb for row in own)

    def order(row: Row) -> tuple[bool, int, int]:
        return any(word in row.size for word in EXAMPLES.get(op, ())), -row.threads, rungs[row.climb]

    return max(shown, key=order)


def card(op: str, name: str) -> str:
    """The idea of a rung, the rung that it stands on, and a table of what was measured."""
    rung = _rung(op, name)
    below = f" It stands on <code>{rung.after}</code>." if rung.after else " It is the first rung of its engine."
    chosen = "It is chosen where it can run." if rung.chosen else "It is taught, and never chosen."
    words = f"<p><strong>Idea:</strong> {html.escape(rung.idea)}.{below} {chosen}</p>"
    rows = list(examples(op, name))
    latest_gpu = max(((row.date, row.machine) for row in rows if not row.threads), default=None)  # one GPU is enough
    lines = [_line(row, rung) for row in rows if row.threads or (row.date, row.machine) == latest_gpu]
    head = "".join(f"<th>{word}</th>" for word in COLUMNS)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    measured = table if lines else "<p>Not measured yet.</p>"
    return f'<div class="rung">{words}{measured}</div>\n'


def _line(row: Row, rung: Rung) -> str:
    share = row.roof_share or 0
    words = f"{share:.3g} x the roof" if share >= MANIFOLD else f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
    bar = f'<span class="roof"><span style="width:{100 * min(share, 1):.1f}%"></span></span> {words}'
    size, full = row.size.removesuffix(f"-{row.dtype}"), _full_rows(row)
    case = f"{row.label}, {size}, {row.dtype}" if row.label else f"{size}, {row.dtype}"
    case += f"; timed on {row.rows:,} of {full:,} rows" if row.rows < full else ""
    threads = f", {row.threads} thread{'s' * (row.threads > 1)}" if row.threads else ""
    lost = ' class="lost"' if (row.versus_below or 1) < 1 else ""
    step = f"<td{lost}>{_times(row.versus_below) if rung.after else ''}</td>"
    where = f"{html.escape(row.machine)}{threads}<br><small>{html.escape(f'{case}; {row.date}')}</small>"
    return f"<tr><td>{where}</td>{step}<td>{_rate(row)}</td><td>{bar}</td></tr>"


def _full_rows(row: Row) -> int:
    """The rows of its case: a slow rung is timed on fewer."""
    return max(other.rows for other in _rows()[row.op, row.machine, row.dtype] if other.size == row.size)


def _rate(row: Row) -> str:
    """Operations per second where there are any, else bytes: three digits or more."""
    value, unit = (row.gflops, "FLOP/s") if row.gflops else (row.gbytes_s or 0, "B/s")
    value, prefix = (value, "G") if value < 1000 else (value / 1000, "T")
    return f"{value:.3g} {prefix}{unit}" if value < 1000 else f"{value:,.0f} {prefix}{unit}"


def _times(ratio: float | None) -> str:
    """A factor: two decimals below ten, else three digits or more."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def factor(machine: str, op: str, name: str) -> str:
    """Its rate over that of the rung below; words where it was not measured."""
    _rung(op, name)
    found = [row.versus_below for row in examples(op, name) if row.machine == machine]
    ratio = found[0] if found else None
    return _times(ratio) if ratio else "(not yet measured)"


def _rung(op: str, name: str) -> Rung:
    """Raises LookupError for a rung that the ladder does not have."""
    if name not in _ladder(op).rungs:
        raise LookupError(f"{op} has no rung {name!r}; it has {', '.join(_ladder(op).rungs)}")
    return _ladder(op).rungs[name]


def bars(op: str, target: str) -> str:
    """The figures that `make report` drew, one for each machine and dtype, and a link to the tables."""
    drawings = sorted(RESULTS.glob(f"*/{op}-*.svg"))
    images = [f"![{p.stem} on {p.parent.name}](../../results/{p.parent.name}/{p.name})" for p in drawings]
    figures = "\n\n".join(images) or "Not measured yet."
    return f"{figures}\n\n[All sizes, as tables]({target})\n"
