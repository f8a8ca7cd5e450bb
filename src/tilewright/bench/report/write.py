"""Generate from results/ what people read: docs/results/, the figures, one HTML page, and the tables between markers.

A marker stands alone on its line: `<!-- ladder:matmul -->` begins a table and `<!-- /ladder:matmul -->` ends it.
Everything between them is written again, so changes by hand are lost. Writing twice changes nothing.
"""

import importlib
import re
from collections.abc import Collection
from pathlib import Path

from tilewright.bench.kernels.table import read as read_kernels
from tilewright.bench.report import figures, headline, page, pages, svg
from tilewright.bench.report.job_ladders import is_job_ladder, of_jobs
from tilewright.bench.report.kernels import traffic_table
from tilewright.bench.report.part_figures import of_parts
from tilewright.bench.report.scaling import of_scaling
from tilewright.bench.report.shown import shown
from tilewright.bench.report.side_by_side import of_sides
from tilewright.bench.report.sweeps import is_sweep, of_sweeps
from tilewright.bench.report.tables import bench_tables, ladder_tables, sizes_tables
from tilewright.bench.report.timelines import read_timelines
from tilewright.bench.report.transcript import transcript
from tilewright.bench.results import SCALING, Row, read, write_text
from tilewright.errors import InputError
from tilewright.formats.files import naming
from tilewright.ops.core.ladder import Ladder, operations

BEGIN = re.compile(r"^<!-- (ladder|sizes|bench|headline|demo|traffic):(\S+) -->$", re.MULTILINE)
UNMEASURED = "Not measured yet: `make bench` does."


def write(root: Path) -> list[Path]:
    """Write docs/results/*.md, the figures, results/report.html, and the tables between markers in README.md and
    docs/learn/*.md, all under `root`. Remove generated pages and figures that no row needs any longer.

    Returns the files that changed. Raises InputError for a broken result file or marker, and if there are no results.
    """
    results, docs = root / "results", root / "docs"
    rows = read(results)
    if not rows:
        raise InputError("there are no results here", path=results, remedy="measure first: `make bench`")
    all_ladders = ladders()
    swept = [row for row in rows if is_sweep(row)]
    stepwise = [row for row in rows if is_job_ladder(row)]
    by_op = shown([row for row in rows if not (is_sweep(row) or is_job_ladder(row))], all_ladders)
    timelines = read_timelines(results)
    drawings = figures.of_results(by_op, all_ladders) | of_parts(by_op, all_ladders) | of_sweeps(swept)
    drawings |= of_scaling(by_op.get(SCALING, [])) | of_sides([*by_op.get("conv3d", []), *swept]) | of_jobs(stepwise)
    drawings |= {one.figure: one.drawing for one in timelines}
    made = {}
    for path in [root / "README.md", *sorted((docs / "learn").glob("*.md"))]:
        if path.exists():
            with naming(path, "read"):
                text = path.read_text()
            made[path] = rewritten(text, path, by_op, all_ladders)
    made |= {results / name: svg.standalone(drawing) for name, drawing in drawings.items()}
    if picture := headline.picture(by_op, all_ladders):
        made[results / headline.PICTURE] = svg.standalone(picture)
    compiled = {op: read_kernels(results, op) for op in all_ladders}
    written = pages.pages(by_op, all_ladders, list(drawings), swept, stepwise, compiled, timelines)
    made |= {docs / "results" / name: text for name, text in written.items()}
    made[results / "report.html"] = page.page(by_op, all_ladders, drawings, swept, stepwise, timelines)
    changed = [path for path, text in made.items() if write_text(path, text)]
    return changed + _removed([*results.glob("*/*.svg"), *(docs / "results").glob("*.md")], made)


def _removed(found: list[Path], made: Collection[Path]) -> list[Path]:
    """Remove generated files that were not generated this time. Other files lack the mark of generated ones, and
    stay."""
    stale = [path for path in sorted(found) if path not in made]
    texts = {path: path.read_text(errors="replace") for path in stale}
    stale = [path for path in stale if texts[path].startswith(svg.HEAD) or texts[path].endswith(f"{pages.MARK}\n")]
    for path in stale:
        path.unlink()
    return stale


def ladders() -> dict[str, Ladder]:
    """Operation -> its ladder."""
    return {name: importlib.import_module(f"tilewright.ops.{name}").ladder for name in operations()}


def rewritten(text: str, path: Path, by_op: dict[str, list[Row]], all_ladders: dict[str, Ladder]) -> str:
    """The text, with every table between markers written from the rows.

    Raises InputError with the path and the line for a marker that is not closed or names no operation.
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
        if kind == "traffic" and name != "matmul":
            raise InputError(f"traffic is counted for matmul, not for {name!r}", path=path, where=where)
        if kind == "headline" and name not in headline.SECTIONS:
            known = ", ".join(headline.SECTIONS)
            raise InputError(f"there is no section {name!r}; the sections are {known}", path=path, where=where)
        body = transcript(path.parent) if kind == "demo" else _tables(kind, name, by_op, all_ladders)
        parts += [text[end : begin.end()], "\n", body, closing]
        end = stop + len(closing)
    return "".join(parts) + text[end:]


def _tables(kind: str, name: str, by_op: dict[str, list[Row]], all_ladders: dict[str, Ladder]) -> str:
    """The text between two markers."""
    rows = by_op.get(name, [])
    if kind == "headline":
        return headline.SECTIONS[name](by_op, all_ladders)
    if kind == "traffic":
        return traffic_table(rows, all_ladders[name]).markdown()
    if kind == "bench":
        tables = bench_tables(rows)
    else:
        tables = {"ladder": ladder_tables, "sizes": sizes_tables}[kind](rows, all_ladders[name])
    return "\n\n".join(table.markdown() for table in tables) or UNMEASURED
