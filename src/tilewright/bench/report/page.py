"""results/report.html: every table and figure on one page that needs nothing else, neither scripts nor the network."""

import html

from tilewright.bench.report import figures
from tilewright.bench.report.tables import Table, bench_tables, ladder_tables, sizes_tables
from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f5f7fa; }
body { margin: 0 auto; max-width: 1080px; padding: 24px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 20px; margin: 40px 0 8px; border-bottom: 1px solid #cbd2d9; }
nav a { margin-right: 16px; color: #2166ac; } p.note { color: #616e7c; font-size: 13px; margin: 6px 0 0; }
.figures { display: flex; flex-wrap: wrap; gap: 16px; } svg { max-width: 100%; height: auto; }
svg, .table { background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; }
.table { overflow-x: auto; padding: 12px; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding-bottom: 8px; }
th, td { text-align: left; padding: 3px 10px; border-bottom: 1px solid #e4e7eb; vertical-align: top; }
th { color: #616e7c; font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
td:first-child { white-space: nowrap; }
"""

INTRODUCTION = (
    "Every kernel was measured in one process with its peer: they took turns in random order, each call after the "
    "caches were emptied. Figures are medians, with the 10th and 90th percentile where a spread is given. A kernel is "
    "timed only after its result passed the check against float64. Roofs are measured on the same machine: the copy "
    "bandwidth of large arrays, and the rate of multiply-adds that stay in registers."
)


def page(by_op: dict[str, list[Row]], ladders: dict[str, Ladder]) -> str:
    """The page as HTML text; the same rows give the same bytes."""
    drawings = figures.of_results(by_op, ladders)
    rooflines = [svg for name, svg in drawings.items() if "/roofline-" in name]
    sections = [("rooflines", _figures(rooflines))] if rooflines else []
    for op, rows in by_op.items():
        if op not in ladders:
            sections.append((op, _tables(bench_tables(rows))))
    for op, ladder in ladders.items():
        if op in by_op:
            own = [svg for name, svg in drawings.items() if name.split("/")[1].rpartition("-")[0] == op]
            tables = ladder_tables(by_op[op], ladder) + sizes_tables(by_op[op], ladder)
            sections.append((op, _figures(own) + _tables(tables)))
    links = "".join(f'<a href="#{html.escape(name)}">{html.escape(name)}</a>' for name, _ in sections)
    body = "\n".join(f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2>\n{content}' for name, content in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tilewright: what was measured</title>
<style>{STYLE}</style>
</head>
<body>
<h1>tilewright: what was measured</h1>
<p>{html.escape(INTRODUCTION)}</p>
<nav>{links}</nav>
{body}
</body>
</html>
"""


def _figures(drawings: list[str]) -> str:
    return '<div class="figures">\n' + "\n".join(drawings) + "</div>\n"


def _tables(tables: list[Table]) -> str:
    return "\n".join(table.html() for table in tables)
