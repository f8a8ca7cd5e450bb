"""Result files: results/<machine>/<op>.csv. Each measurement is one row, with its commit, session and passed check.

A session is one run of the bench. All rows that a ladder has for a dtype are measured in one session, and rows of two
sessions are never mixed (`one_session`). A later session replaces an earlier one if it measured as much.
"""

import csv
import datetime
import functools
import io
import math
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.bench.libraries import version_of
from tilewright.errors import InputError, ResourceError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import naming
from tilewright.hardware.checkout import commit
from tilewright.ops.core.ladder import operations

SCALING = "scaling"  # the operation of rows of `bench scaling`
PEER = "peer"  # a row's `check` if it is a row of another library
JOB_LADDER = "job_"  # the name of a job ladder's result file: this prefix, then the job
WORKERS = "workers"  # the parameter of a sweep whose points are worker processes and are saved one by one
SLOW = "; slow here"  # the end of `check` if the machine chooses another rung, though this one accepts the case


@dataclass(frozen=True)
class Row:
    """One measurement. Times are in seconds; None: the column does not apply.

    threads: number of CPU threads; 0 on a GPU. size: the case's name, with its number of rows. rows: how many of them
    were timed; a slow rung is timed on fewer. one_off_s: time to prepare the weights. roof_share: share of the lower of
    two limits that were measured in the same process, roof_*. versus_below: speed relative to the rung below. check:
    see PEER and SLOW. peer_ratio: speed relative to `peer`, from alternating rounds. session: the time at which the
    bench was started. noise: why the times may be unreliable, see `bench.noise`. point: in a sweep the values of its
    parameters, as in "tile=8, block=64"; the first is the figure's x axis. In scaling: "workers=2, hosts=1, devices=2".
    library: of a peer's row its package and version, as in "torch 2.9.1".
    """

    op: str
    rung: str
    size: str
    dtype: str
    threads: int
    rows: int
    median_s: float
    low_s: float
    high_s: float
    runs: int
    gflops: float | None = None
    gbytes_s: float | None = None
    roof_share: float | None = None
    roof_gflops: float | None = None
    roof_gbytes_s: float | None = None
    versus_below: float | None = None
    peer: str | None = None
    peer_ratio: float | None = None
    one_off_s: float | None = None
    check: str = "passed"
    label: str = ""
    commit: str = ""
    date: str = ""
    machine: str = ""
    session: str = ""
    noise: str = ""
    point: str = ""
    library: str = ""

    @property
    def origin(self) -> tuple[str, str, str]:
        """The commit, the day and the session. Rows with another origin belong to another session."""
        return self.date, self.session, self.commit

    @property
    def climb(self) -> tuple[str, str, int]:
        """What is measured together in alternation: (size, dtype, threads)."""
        return self.size, self.dtype, self.threads

    @property
    def engine(self) -> str:
        """The engine that ran the shards of a row of `bench scaling`: local, mpi or ray; "" for any other row."""
        return self.rung.partition(",")[0] if self.op == SCALING else ""

    @property
    def setting(self) -> dict[str, str]:
        """The values of a sweep's parameters."""
        return dict(pair.split("=", 1) for pair in self.point.split(", ")) if self.point else {}

    @property
    def swept(self) -> tuple:
        """What belongs to one sweep: the kernel, the case, and the names of the parameters."""
        return self.rung, self.size, self.dtype, tuple(self.setting)


_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f]")  # these characters would end a row of a table
COLUMNS = [field.name for field in fields(Row)]
KERNELS = "kernels_"  # files of compiled kernels, which are not measurements; see `bench.kernels.table`
LATER = {"session", "noise", "point", "library"}  # columns that files of earlier versions lack


@functools.cache
def session() -> str:
    """The session of this process: the time of the first call, in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_session(rows: list[Row], rungs: Collection[str]) -> list[Row]:
    """The rows of one session: the one with the most climbs that include a peer, then the most rungs, then the latest.

    rows: of one machine, ladder and dtype. rungs: the names that the ladder has now; other rungs do not count. Climbs
    with a peer count first. Otherwise a session of some lower rungs alone could show a rung as the default that is not.
    """
    counts = Counter(row.origin for row in rows if row.rung in rungs)
    if not counts:
        return []
    beside = Counter(origin for origin, _ in {(row.origin, row.climb) for row in rows if row.check == PEER})
    chosen = max(counts, key=lambda origin: (beside[origin], counts[origin], origin))
    return [row for row in rows if row.origin == chosen]


def save(folder: Path, machine: str, rows: list[Row]) -> list[Path]:
    """Write rows to folder/<machine>/<op>.csv. Each file is replaced as a whole.

    Which earlier rows are dropped depends on their kind. Of a ladder, an earlier session of the same dtype, if the new
    one has as many rungs in each climb. Of a workload, all rows of the climbs and engines that tilewright ran again; a
    peer's row in another climb replaces only its own. The new rows take their place in the file, because README shows
    the first size. Of a job's ladder, those of the same size and dtype. Of a sweep, those of the same kernel, case and
    parameters; but of a sweep over workers, other points of the same commit are kept, if their workers had as many
    cores. Raises InputError if an existing file is no result file, ResourceError if it cannot be written.
    """
    stamp = {"commit": commit(), "date": datetime.date.today().isoformat(), "machine": machine, "session": session()}
    written = []
    for op in dict.fromkeys(row.op for row in rows):
        path = folder / machine / f"{op}.csv"
        new = [Row(**asdict(row) | stamp | _library(row)) for row in rows if row.op == op]
        old = list(_rows(path))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in _ordered([*_remaining(old, new, whole=op in operations()), *new], old):
            writer.writerow({name: _text(value) for name, value in asdict(row).items()})
        write_text(path, text.getvalue())
        written.append(path)
    return written


def _library(row: Row) -> dict[str, str]:
    return {"library": version_of(row.rung)} if row.check == PEER else {}


def _remaining(old: list[Row], new: list[Row], *, whole: bool) -> list[Row]:
    """The earlier rows of an operation that are kept. whole: it has a ladder, so a session is kept or dropped as a
    whole."""
    if new[0].point and not new[0].engine:
        again = {row.swept for row in new}
        return [row for row in old if row.swept not in again or _beside(row, new)]
    if new[0].op.startswith(JOB_LADDER):
        sizes = {row.climb[:2] for row in new}
        return [row for row in old if row.climb[:2] not in sizes]
    if not whole:
        again = {(row.climb, row.engine) for row in new if row.check != PEER}
        peers = {(row.climb, row.rung) for row in new if row.check == PEER}  # may have another dtype
        return [row for row in old if (row.climb, row.engine) not in again and (row.climb, row.rung) not in peers]
    again = {(row.origin, row.climb, row.rung) for row in new}
    old = [row for row in old if (row.origin, row.climb, row.rung) not in again]
    measured = Counter(row.climb for row in new if row.check != PEER)
    before: dict[tuple, Counter] = {}
    for row in old:
        before.setdefault((row.dtype, row.origin), Counter())[row.climb] += row.check != PEER
    own = {(row.dtype, row.origin) for row in new}
    stay = {unit for unit, climbs in before.items() if any(climbs[climb] > measured[climb] for climb in climbs)} | own
    return [row for row in old if (row.dtype, row.origin) in stay]


def _beside(row: Row, new: list[Row]) -> bool:
    """Whether an earlier point over workers stays beside the new ones: another point, measured with the same code, and
    as many cores per worker."""
    same = (row.commit, row.threads) == (new[0].commit, new[0].threads)
    same = same and (is_exact(row.commit) or row.session == new[0].session)
    return WORKERS in row.setting and same and row.point not in {one.point for one in new}


def _ordered(rows: list[Row], old: list[Row]) -> list[Row]:
    """The rows of a file. Points over workers, which are saved in any order, are in the order of their values. The
    sizes of a workload keep the order that they have in `old`, the file's earlier rows."""
    if any(WORKERS in row.setting and not row.engine for row in rows):
        sweeps = list(dict.fromkeys(row.swept for row in rows))
        return sorted(rows, key=lambda row: (sweeps.index(row.swept), _values(row) if WORKERS in row.setting else ()))
    op, swept = rows[0].op, any(row.point and not row.engine for row in rows)
    if swept or op in operations() or op.startswith(JOB_LADDER):
        return rows
    places = {climb: i for i, climb in enumerate(dict.fromkeys(row.climb for row in old))}
    return sorted(rows, key=lambda row: places.get(row.climb, len(places)))


def _values(row: Row) -> tuple[int, ...]:
    return tuple(int(value) for value in row.setting.values())


def write_text(path: Path, text: str) -> bool:
    """Replace the file as a whole, and create its folder if necessary. If the file already has this text, return False
    and change nothing.

    Raises ResourceError, which names the path and the reason.
    """
    with naming(path, "write"):
        if path.exists() and path.read_bytes() == text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as file:
        file.write(text.encode())
    return True


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read_text(path: Path) -> list[dict[str, str]]:
    """The rows of one file as text; none if the file does not exist."""
    if not path.exists():
        return []
    with naming(path, "read"):
        text = path.read_text(errors="replace")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        found = list(reader)
    except csv.Error as error:
        raise InputError(f"this is no CSV file: {error}", path=path, where=f"line {reader.line_num}") from error
    known = [name for name in COLUMNS if name not in LATER or name in (reader.fieldnames or ())]
    if reader.fieldnames != known or any(None in row or None in row.values() for row in found):
        raise InputError(
            f"this is no result file: its columns are not {', '.join(COLUMNS)}",
            path=path,
            remedy="remove it and measure again",
        )
    return [dict.fromkeys(LATER, "") | row for row in found]


def read(folder: Path, machine: str = "*", op: str = "*") -> list[Row]:
    """All rows, or those of one machine or operation, in the order of the file names and the lines.

    Raises InputError, which names the file and the line, if a line is not a row.
    """
    paths = [path for path in sorted(folder.glob(f"{machine}/{op}.csv")) if not path.name.startswith(KERNELS)]
    return [row for path in paths for row in _rows(path)]


def _rows(path: Path) -> Iterator[Row]:
    for number, values in enumerate(_read_text(path), start=2):
        try:
            cells: dict[str, Any] = {f.name: _value(f.type, values[f.name]) for f in fields(Row)}
            yield Row(**cells)
        except ValueError as error:
            raise InputError(f"not a measurement: {error}", path=path, where=f"line {number}") from error


def _value(kind: object, text: str) -> object:
    """Convert a cell to the type of its field. An empty cell is None if the field allows it."""
    if kind in (float | None, str | None) and not text:
        return None
    if kind in (float, float | None):
        if len(text) > 40:
            raise ValueError(f"{text[:40]!r}... is no number")
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]!r} is no finite number")
        return number
    if kind is int:
        if len(text) > 40:
            raise ValueError(f"{text[:40]!r}... is no number")
        return int(text)
    if bad := _NOT_TEXT.search(text):
        raise ValueError(f"{text[:40]!r} contains {bad[0]!r}; a name must be one line of plain text")
    return text


def is_exact(name: str) -> bool:
    """True if the name that `commit` gave says which code was measured."""
    return name not in ("", "unknown") and not name.endswith("-dirty")


def check_here() -> None:
    """Raises ResourceError if `save_here` cannot write, before minutes are spent on a measurement."""
    folder = Path("results")
    try:
        with tempfile.TemporaryFile(dir=folder if folder.exists() else "."):
            pass
    except OSError as error:
        remedy = "run the command in a folder that you can write to, or leave out --save"
        raise ResourceError(f"{folder.absolute()}: results cannot be saved: {error.strerror}", remedy=remedy) from error


def save_here(rows: list[Row]) -> list[Path]:
    """`save` to results/ in the current directory, under this machine's name; rows with 0 threads under its GPU's
    name."""
    from tilewright.hardware import gpu_name, machine_name

    on_gpu, on_cpu = [row for row in rows if not row.threads], [row for row in rows if row.threads]
    written = save(Path("results"), gpu_name(), on_gpu) if on_gpu else []
    return written + (save(Path("results"), machine_name(), on_cpu) if on_cpu else [])
