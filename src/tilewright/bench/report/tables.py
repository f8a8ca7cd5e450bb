"""Rows of results as tables, for Markdown files and for the HTML page.

In a Markdown file a marker names each table. `ladder:OP` is every rung at one size. `sizes:OP` is the chosen rung at
every size, with its peer. `bench:WORKLOAD` is a whole job. For gpt2, `bench:gpt2_profile` shows where its time goes,
and `bench:gpt2_accuracy` what bfloat16 changes. `headline:jobs` is in `headline.py`.
"""

import html
import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.bench.libraries import versions_note
from tilewright.bench.noise import reasons
from tilewright.bench.report.laws import curves, law_sentences
from tilewright.bench.results import PEER, SLOW, Row
from tilewright.ops.core.ladder import Ladder

T = TypeVar("T")
UNITS = {  # the unit of a job's rates
    "sentiment": "sentences/s", "embed": "texts/s", "gpt2": "tokens/s", "score": "texts/s", "dcgan": "images/s",
    "volumes": "planes/s",
}  # fmt: skip
ABOVE = 1.03  # share of the limit; up to it an excess is the spread of both measurements
WHY_ABOVE = (
    "The roof counts the plain method's arithmetic and bytes in the dtype of the data. A rung passes it if it computes "
    "less (Winograd's form, tables of sums, screening in 16 bits), if it computes on a faster unit (float32 as several "
    "16-bit products on matrix units), or if its data stay in a cache, where the memory roof does not bind."
)


@dataclass(frozen=True)
class Table:
    """caption, header and rows of text. notes: paragraphs below the table. Columns from index `numbers` on are aligned
    right."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
    notes: tuple[str, ...] = ()

    def _filled(self) -> "Table":
        """The table without the columns that are empty in every row."""
        filled = [i for i in range(len(self.header)) if any(row[i] for row in self.rows) or not self.rows]
        header, *rows = (tuple(row[i] for i in filled) for row in (self.header, *self.rows))
        return replace(self, header=header, rows=tuple(rows), numbers=sum(i < self.numbers for i in filled))

    def markdown(self) -> str:
        """The table in GitHub's Markdown."""
        full = self._filled()
        align = ["---" if i < full.numbers else "---:" for i in range(len(full.header))]
        lines = [
            "| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |"
            for row in (full.header, align, *full.rows)
        ]
        return "\n\n".join([plain(self.caption), "\n".join(lines), *map(plain, self.notes)])

    def heading(self) -> str:
        """The table as `text` writes it, without the notes."""
        return replace(self, notes=()).text()

    def text(self) -> str:
        """The table for a terminal."""
        every = (self.header, *self.rows)
        widths = [max(len(row[i]) for row in every) for i in range(len(self.header))]

        def line(row: tuple[str, ...]) -> str:
            cells = zip(row, widths, strict=True)
            return "  ".join(c.ljust(w) if i < self.numbers else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip()

        return "\n".join([self.caption, *map(line, every), *self.notes])

    def html(self) -> str:
        """A `div` with a table. Each cell has its column's name, which narrow windows show beside it."""

        full = self._filled()
        marks = ["" if i < full.numbers else ' class="number"' for i in range(len(full.header))]
        labels = [html.escape(name, quote=True) for name in full.header]
        head = "".join(f"<th{mark}>{name}</th>" for mark, name in zip(marks, labels, strict=True))

        def line(row: tuple[str, ...]) -> str:
            cells = zip(marks, labels, row, strict=True)
            return "".join(f'<td{mark} data-label="{name}">{html.escape(cell)}</td>' for mark, name, cell in cells)

        body = "\n".join(f"<tr>{line(row)}</tr>" for row in full.rows)
        notes = "".join(f'\n<p class="note">{html.escape(note)}</p>' for note in self.notes)
        caption = f"<caption>{html.escape(self.caption)}</caption>"
        table = f"<table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
        return f'<div class="table">{table}{notes}</div>'


def plain(text: str) -> str:
    """Text of a result for Markdown. It cannot begin HTML or a comment, so it cannot begin a marker."""
    return re.sub(r"<(?=[A-Za-z!/?])", "&lt;", text)


def groups(rows: Iterable[T], key: Callable[[T], Hashable]) -> dict:
    """Key -> its rows, both in the order of `rows`."""
    found: dict[Hashable, list[T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def three(value: float | None) -> str:
    """Three digits, with an exponent only below 0.001; nothing for None."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """A factor: two decimals below ten, otherwise three digits."""
    return three(ratio) if ratio is None or ratio >= 10 else f"{ratio:.2f}"


def percent(share: float | None) -> str:
    """A share in percent: 0.0312 -> "3.1"."""
    return "" if share is None else f"{100 * share:.1f}" if share < 0.1 else f"{100 * share:,.0f}"


def device_of(threads: int) -> str:
    """The device of a row: "2 threads", or "GPU" for 0."""
    return f"{threads} thread{'s' * (threads > 1)}" if threads else "GPU"


NAMES = {
    "amd": "AMD",
    "epyc": "EPYC",
    "nvidia": "NVIDIA",
    "emeraldrapids": "Emerald Rapids",
    "arm": "ARM",
    "hbm3": "HBM3",
    "noamx": "without AMX",
}


def machine_title(machine: str) -> str:
    """A machine's folder as a readable name: "amd-epyc-zen5-2c" -> "AMD EPYC Zen 5, 2 cores"."""
    words, _, last = machine.rpartition("-")
    cores = re.fullmatch(r"(\d+)c", last)
    parts = words.split("-") if cores else machine.split("-")
    names = [NAMES.get(part) or re.sub(r"^Zen(?=\d)", "Zen ", part.capitalize()) for part in parts]
    names = [re.sub(r"^(\d+)gb$", r"\1 GB", name) for name in names]
    return " ".join(names) + (f", {cores[1]} core{'s' * (cores[1] != '1')}" if cores else "")


def rate(row: Row) -> tuple[float | None, str]:
    """(rate, unit): operations per second if the row has any, otherwise bytes per second."""
    return (row.gflops, "GFLOP/s") if row.gflops else (row.gbytes_s, "GB/s")


def origin(rows: list[Row]) -> str:
    """Where and when the rows were measured: "amd-epyc-zen5-2c, commit 1a2b3c4, 2026-11-21". Rows that were not saved
    lack this."""
    if not rows[0].machine:
        return "measured now, on this machine"
    commits, dates = (sorted({getattr(row, name) for row in rows}) for name in ("commit", "date"))
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{rows[0].machine}, commit {' and '.join(commits)}, {days}"


def headline(rows: list[Row], ladder: Ladder) -> list[Row]:
    """The rows of the size that shows the ladder best: the first with (nearly) the most rungs and thread counts.

    "Nearly" so that a rung for a rare shape does not decide. The sizes are listed with the most usual one first.
    """
    by_size = groups((row for row in rows if row.rung in ladder.rungs or row.check == PEER), lambda row: row.size)
    counts = {size: len({(row.rung, row.threads) for row in some}) for size, some in by_size.items()}
    enough = 0.9 * max(counts.values(), default=0)
    return next((by_size[size] for size, count in counts.items() if count >= enough), [])


def ladder_tables(rows: list[Row], ladder: Ladder) -> list[Table]:
    """Every rung and peer at the headline size: a table per machine and dtype. The last table of a machine has its
    notes.

    rows: of one session per machine and dtype.
    """
    tables = []
    for some in groups(rows, lambda row: row.machine).values():
        by_dtype = [headline(same, ladder) for same in groups(some, lambda row: row.dtype).values()]
        own = [_ladder_table(shown, ladder) for shown in by_dtype if shown]
        if own:
            own[-1] = replace(own[-1], notes=(*own[-1].notes, *_missing(some, ladder)))
        tables += own
    return tables


def _missing(rows: list[Row], ladder: Ladder) -> Iterator[str]:
    """The rungs that a machine has not measured, though it has measured others of their engine."""
    measured = {row.rung for row in rows if row.check != PEER}
    kinds = {_on_a_gpu(name) for name in measured & ladder.rungs.keys()}
    missing = [name for name in ladder.rungs if name not in measured and _on_a_gpu(name) in kinds]
    if missing:
        ideas = "; ".join(f"{name} ({ladder.rungs[name].idea})" for name in missing)
        yield f"Not measured on this machine: {ideas}."


def _above(rows: list[Row]) -> list[str]:
    """Why some rows are above the limit, if any are."""
    names = dict.fromkeys(row.rung for row in rows if row.roof_share and row.roof_share > ABOVE)
    return [f"Above the roof: {', '.join(names)}. {WHY_ABOVE}"] if names else []


def row_notes(rows: list[Row]) -> Iterator[str]:
    """Why the times are unreliable, if they are; the versions of the peers, if there are some."""
    if why := reasons(rows):
        yield f"Noisy: {why}."
    yield from versions_note(row.library for row in rows)


def _on_a_gpu(rung: str) -> bool:
    return rung.startswith(("simt.", "tile."))


def _ladder_table(rows: list[Row], ladder: Ladder) -> Table:
    counts = _counts(rows)
    cell = {(row.rung, row.threads): row for row in rows}
    unit = rate(rows[0])[1]
    header = ["rung", "idea"]
    for count in counts:
        header += [f"{unit}, {device_of(count)}", "of the roof, %", "speed-up over the rung below"]
    peers = [name for name in dict.fromkeys(row.rung for row in rows) if name not in ladder.rungs]
    lines = []
    for name in [name for name in ladder.rungs if any((name, count) in cell for count in counts)] + peers:
        line = [name, ladder.rungs[name].idea if name in ladder.rungs else "peer"]
        for count in counts:
            row = cell.get((name, count))
            line += [three(rate(row)[0]), percent(row.roof_share), times(row.versus_below)] if row else [""] * 3
        lines.append(tuple(line))
    full = max(row.rows for row in rows)
    fewer = [f"{row.rung} ({row.rows})" for row in rows if row.rows < full and row.threads == counts[-1]]
    notes = [f"Timed on fewer than the {full} rows: {', '.join(fewer)}."] if fewer else []
    notes += _above(rows)
    first = rows[0]
    caption = f"{case_of(first)}, {first.dtype}; {origin(rows)}"
    return Table(caption, tuple(header), tuple(lines), 2, (*notes, *row_notes(rows)))


def size_of(row: Row) -> str:
    """The case's name without its dtype."""
    return row.size.replace(f"-{row.dtype}", "")


def case_of(row: Row) -> str:
    """The case's label, if it has one, and its name."""
    size = size_of(row)
    return f"{row.label}, {size}" if row.label else size


def _counts(rows: list[Row]) -> list[int]:
    """The smallest and the largest number of threads that was measured."""
    counts = sorted({row.threads for row in rows})
    return counts if len(counts) < 3 else [counts[0], counts[-1]]


def default_row(rows: list[Row], ladder: Ladder) -> Row | None:
    """Of one size's rows, the one of the rung that runs by default."""
    by_name = {row.rung: row for row in rows if not row.check.endswith(SLOW)}
    return next((by_name[name] for name in ladder.prefer if name in by_name), None)


def sizes_tables(rows: list[Row], ladder: Ladder) -> list[Table]:
    """What runs by default at every size, with its peer: one table per machine, dtype and number of threads."""
    tables = []
    for some in groups(rows, lambda row: (row.machine, row.dtype, row.threads)).values():
        chosen = [default_row(same, ladder) for same in groups(some, lambda row: row.size).values()]
        shown = [row for row in chosen if row]
        if shown:
            tables.append(_sizes_table(shown, {(row.size, row.rung): row for row in some}))
    return tables


def _sizes_table(shown: list[Row], every: dict[tuple[str, str], Row]) -> Table:
    first = shown[0]
    unit = rate(first)[1]
    lines: list[tuple[str, ...]] = []
    ratios: list[float] = []
    for row in shown:
        peer = every.get((row.size, row.peer or ""))
        ratio = row.peer_ratio if peer else None
        ratios += [ratio] if ratio else []
        spread = f"{three(row.low_s * 1e3)} to {three(row.high_s * 1e3)}"
        figures = (three(rate(row)[0]), percent(row.roof_share), three(row.median_s * 1e3), spread)
        lines.append((row.label, size_of(row), row.rung, *figures, row.peer or "", times(ratio)))
    if len(ratios) > 1:
        lines.append(("geometric mean", *[""] * 7, times(statistics.geometric_mean(ratios))))
        lines.append(("least", *[""] * 7, times(min(ratios))))
    times_ms = ("median, ms", "10th to 90th percentile, ms")
    header = ("case", "size", "rung", unit, "of the roof, %", *times_ms, "peer", "speed-up over the peer")
    caption = f"{first.op}, {first.dtype}, {device_of(first.threads)}; {origin(shown)}"
    return Table(caption, header, tuple(lines), 3, (*_above(shown), *row_notes(shown)))


def bench_tables(rows: list[Row]) -> list[Table]:
    """A whole job: tables per machine and session."""
    tables = []
    for (_, op, _), some in groups(rows, lambda row: (row.machine, row.op, row.origin)).items():
        own = TEXT_TABLES.get(op, _job_tables)(some)
        own[-1] = replace(own[-1], notes=(*own[-1].notes, *row_notes(some)))
        tables += own
    told = [{note for table in tables[i + 1 :] for note in table.notes} for i in range(len(tables))]
    return [
        replace(table, notes=tuple(note for note in table.notes if note not in later))  # each note once
        for table, later in zip(tables, told, strict=True)
    ]


def _job_tables(rows: list[Row]) -> list[Table]:
    """The median and the spread of a run, records per second, and how many times as fast as a peer tilewright is."""
    lines = []
    for row in rows:
        figures = three(row.rows / row.median_s), three(row.median_s), _seconds(row), three(row.one_off_s)
        lines.append((*_what(row), *figures, _beside(row), times(row.peer_ratio)))
    header = (*WHAT, UNITS.get(rows[0].op, "records/s"), *SECONDS, *BESIDE)
    return [Table(f"{rows[0].op}; {origin(rows)}", header, tuple(lines), len(WHAT))]


WHAT = ("workload", "variant", "dtype", "check", "device")
SECONDS = ("median, s", "10th to 90th percentile, s", "one-off, s")
BESIDE = ("compared with", "tilewright is x times as fast")


def _what(row: Row) -> tuple[str, ...]:
    return row.size, row.rung, row.dtype, row.check, device_of(row.threads)


def _beside(row: Row) -> str:
    """The library to which the factor of a row refers, if the row is tilewright's. A peer's own row names it
    already."""
    return "" if row.peer is None or row.peer == row.rung else row.peer


def _seconds(row: Row) -> str:
    return f"{three(row.low_s)} to {three(row.high_s)}" if row.low_s < row.high_s else ""


def _text_tables(rows: list[Row]) -> list[Table]:
    """Tokens per second of each engine. Also in a peer's row, the factor says how many times as fast tilewright is."""
    lines = []
    for row in rows:
        ratio = 1 / row.peer_ratio if row.check == PEER and row.peer_ratio else row.peer_ratio
        figures = three(row.rows / row.median_s), three(row.median_s), _seconds(row), three(row.one_off_s)
        lines.append((*_what(row), *figures, _beside(row), times(ratio), row.label))
    header = (*WHAT, UNITS["gpt2"], *SECONDS, *BESIDE, "batch of the peer; range of the factor")
    return [Table(f"gpt2; {origin(rows)}", header, tuple(lines), len(WHAT))]


def _profile_tables(rows: list[Row]) -> list[Table]:
    """Where the time of one run goes: one table per workload."""
    header = ("operation", "calls", "total, s", "of the time, %", "GFLOP/s", "GB/s", "of the roof, %")
    tables = []
    for (size, dtype, threads), some in groups(rows, lambda row: (row.size, row.dtype, row.threads)).items():
        lines = tuple(
            (row.rung, f"{row.rows:,}", three(row.median_s), row.label.rstrip("% "), three(row.gflops),
             three(row.gbytes_s), percent(row.roof_share))
            for row in some
        )  # fmt: skip
        notes = tuple(_above(some))
        tables.append(Table(f"{size}, {dtype}, {device_of(threads)}; {origin(some)}", header, lines, 1, notes))
    return tables


def _accuracy_tables(rows: list[Row]) -> list[Table]:
    """Logits and greedy tokens, compared with those of float32."""
    figures = ("largest error of a logit", "root mean square error", "equal first tokens", "equal tokens")
    lines = tuple((row.rung, row.size, row.dtype, f"{row.rows:,}", *row.label.split("; ")) for row in rows)
    return [Table(f"against float32; {origin(rows)}", ("engine", "case", "dtype", "prompts", *figures), lines, 3)]


def _scaling_tables(rows: list[Row]) -> list[Table]:
    """Jobs with several workers: the time of their shards, and the rest of the run's time."""
    lines = []
    for row in rows:
        workers = int(row.label)
        each = "a GPU" if not row.threads else "1 core" if row.threads == 1 else f"{row.threads} cores"
        figures = three(row.rows / row.median_s), three(row.median_s), three(row.one_off_s), times(row.versus_below)
        share = percent(row.versus_below / workers if row.versus_below else None)
        lines.append((row.size, row.dtype, row.rung.split(",")[0], each, str(workers), *figures, share))
    ratios = ("speed-up over one worker", "of linear, %")
    header = ("job", "dtype", "engine", "each worker has", "workers", "records/s", "shards, s", "overhead, s", *ratios)
    note = (
        "Shards: the time for all shards, as if all workers had started together. Overhead: the rest of the process, "
        "from its start to its end: loading, fetching kernels, merging. Every run wrote the bytes of one worker."
    )
    laws = [sentence for curve in curves(rows) for sentence in law_sentences(curve)]
    return [Table(f"scaling; {origin(rows)}", header, tuple(lines), 4, (*laws, note))]


TEXT_TABLES: dict[str, Callable[[list[Row]], list[Table]]] = {
    "gpt2": _text_tables, "gpt2_profile": _profile_tables, "gpt2_accuracy": _accuracy_tables,
    "dcgan_profile": _profile_tables, "sentiment_profile": _profile_tables, "volumes_profile": _profile_tables,
    "scaling": _scaling_tables,
}  # fmt: skip
