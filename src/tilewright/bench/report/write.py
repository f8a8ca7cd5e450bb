"""From results/ to what people read: the tables between the markers of Markdown files, the figures, one HTML page.

A marker stands alone on its line: `<!-- ladder:matmul -->` begins a table and `<!-- /ladder:matmul -->` ends it.
Whatever lies between is written anew, so a number typed there by hand does not survive. Writing twice changes nothing.
"""

import importlib
import re
from pathlib import Path

from tilewright.bench.report import figures, page
from tilewright.bench.report.headline import headline_tables
from tilewright.bench.report.tables import bench_tables, groups, ladder_tables, sizes_tables
from tilewright.bench.report.transcript import transcript
from tilewright.bench.results import Row, one_session, read, write_text
from tilewright.errors import InputError
from tilewright.formats.files import naming
from tilewright.ops.core.ladder import Ladder, operations

BEGIN = re.compile(r"^<!-- (ladder|sizes|bench|headline|demo):(\S+) -->$", re.MULTILINE)
UNMEASURED = "Not measured yet: `make bench` does."


def write(root: Path) -> list[Path]:
    """Rewrite README.md, results/README.md, docs/ladders/*.md, the figures and results/report.html under `root`.

    Returns the files that changed. Raises InputError for a broken result file or marker, and if there are no results.
    """
    results = root / "results"
    rows = read(results)
    if not rows:
        raise InputError("there are no results here", path=results, remedy="measure first: `make bench`")
    by_op, all_ladders = groups(rows, lambda row: row.op), ladders()
    for op in by_op.keys() & all_ladders.keys():
        same = groups(by_op[op], lambda row: (row.machine, row.dtype)).values()
        by_op[op] = [row for some in same for row in one_session(some, all_ladders[op].rungs)]
    changed = []
    for path in [root / "README.md", results / "README.md", *sorted((root / "docs/ladders").glob("*.md"))]:
        if path.exists():
            with naming(path, "read"):
                text = path.read_text()
            changed += [path] * write_text(path, rewritten(text, path, by_op, all_ladders))
    for name, drawing in figures.of_results(by_op, all_ladders).items():
        changed += [results / name] * write_text(results / name, drawing)
    target = results / "report.html"
    return changed + [target] * write_text(target, page.page(by_op, all_ladders))


def ladders() -> dict[str, Ladder]:
    """Operation -> its ladder."""
    return {name: importlib.import_module(f"tilewright.ops.{name}").ladder for name in operations()}


def rewritten(text: str, path: Path, by_op: dict[str, list[Row]], all_ladders: dict[str, Ladder]) -> str:
    """The text with every table written from the rows.

    Raises InputError naming path and line for a marker that is not closed or names no operation.
    """
    parts, end = [], 0
    for begin in BEGIN.finditer(text):
        kind, name = begin.groups()
        where = f"line {text.count(chr(10), 0, begin.start()) + 1}"
        closing = f"\n<!-- /{kind}:{name} -->"
        stop = text.find(closing, begin.end())
        if stop < 0 or BEGIN.search(text, begin.end(), stop):
            raise InputError(f"the marker {begin[0]} is not closed by {closing.strip()}", path=path, where=where)
        if kind in ("ladder", "sizes") and name not in all_ladders:
            known = ", ".join(all_ladders)
            raise InputError(f"there is no operation {name!r}; the operations are {known}", path=path, where=where)
        body = transcript(path.parent) if kind == "demo" else _tables(kind, name, by_op, all_ladders)
        parts += [text[end : begin.end()], "\n", body, closing]
        end = stop + len(closing)
    return "".join(parts) + text[end:]


def _tables(kind: str, name: str, by_op: dict[str, list[Row]], all_ladders: dict[str, Ladder]) -> str:
    """What stands between two markers that ask for tables."""
    rows = by_op.get(name, [])
    if kind == "headline":
        tables = headline_tables(by_op)
    elif kind == "bench":
        tables = bench_tables(rows)
    else:
        tables = {"ladder": ladder_tables, "sizes": sizes_tables}[kind](rows, all_ladders[name])
    return "\n\n".join(table.markdown() for table in tables) or UNMEASURED
