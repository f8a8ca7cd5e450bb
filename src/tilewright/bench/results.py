"""Result files: results/<machine>/<op>.csv, one row per measurement, with its commit, session and passed check.

A session is one run of the bench. A ladder's rows of one dtype are one unit: they are measured in one session, and
rows of two sessions are never mixed (`one_session`). A later session replaces an earlier one that it covers.
"""

import csv
import datetime
import functools
import io
import math
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import naming
from tilewright.ops.core.ladder import operations

SCALING = "scaling"  # the operation of rows of `bench scaling`
PEER = "peer"  # a row's `check` where it is not ours
JOB_LADDER = "job_"  # how the name of a job ladder's result file begins; the job follows
WORKERS = "workers"  # the parameter of a sweep whose points are processes of their own and are saved one by one
SLOW = "; slow here"  # how it ends if the machine chooses another rung, though this one takes the case


@dataclass(frozen=True)
class Row:
    """One measurement. Times in seconds; a figure that does not apply is None.

    threads: of the CPU; 0 on a GPU. size: the case's name, rows included. rows: how many of them were timed (a slow
    rung is timed on fewer). one_off_s: preparing weights. roof_share: of the tighter of the two limits measured in that
    process, roof_*. versus_below: rate over that of the rung it stands on. check: see PEER and SLOW. peer_ratio: how
    many times faster than `peer`, from interleaved rounds. session: when the bench was started. noise: why the figures
    may be noise, see `bench.noise`. point: of a sweep, the values of its parameters: "tile=8, block=64"; the first one
    is the figure's x axis. Of scaling: "workers=2, hosts=1, devices=2".
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

    @property
    def origin(self) -> tuple[str, str, str]:
        """When and of what it was measured; rows with another origin are of another session."""
        return self.date, self.session, self.commit

    @property
    def climb(self) -> tuple[str, str, int]:
        """What is measured in one interleaved run: (size, dtype, threads)."""
        return self.size, self.dtype, self.threads

    @property
    def engine(self) -> str:
        """What ran the shards of a row of `bench scaling`: local, mpi or ray; "" of any other row."""
        return self.rung.partition(",")[0] if self.op == SCALING else ""

    @property
    def setting(self) -> dict[str, str]:
        """The values of a sweep's parameters."""
        return dict(pair.split("=", 1) for pair in self.point.split(", ")) if self.point else {}

    @property
    def swept(self) -> tuple:
        """What a sweep measures as a whole: a kernel, a case, and the names of the parameters."""
        return self.rung, self.size, self.dtype, tuple(self.setting)


_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f]")  # would end a row of a table
COLUMNS = [field.name for field in fields(Row)]
KERNELS = "kernels_"  # files of compiled kernels, which are no measurements; see `bench.kernels.table`
LATER = {"session", "noise", "point"}  # columns that files of earlier versions lack


@functools.cache
def session() -> str:
    """The session of this process: the time of the first call, in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_session(rows: list[Row], rungs: Collection[str]) -> list[Row]:
    """The rows of the session that measured most climbs beside a peer, of equals most rungs, of equals the latest.

    rows: of one machine, ladder and dtype. rungs: the names that the ladder has; other rungs do not count. Peers count
    first, because a session of some lower rungs alone would show a rung that does not run by default as if it did.
    """
    counts = Counter(row.origin for row in rows if row.rung in rungs)
    if not counts:
        return []
    beside = Counter(origin for origin, _ in {(row.origin, row.climb) for row in rows if row.check == PEER})
    chosen = max(counts, key=lambda origin: (beside[origin], counts[origin], origin))
    return [row for row in rows if row.origin == chosen]


def save(folder: Path, machine: str, rows: list[Row]) -> list[Path]:
    """Write rows to folder/<machine>/<op>.csv, each file as a whole.

    Of a ladder an earlier session of the same dtype goes if the new one has as many rungs in each of its climbs. Of a
    workload all earlier rows of the same climb (and engine) go, of a job's ladder those of the same size and dtype, of
    a sweep those of the same kernel, case and parameters. Of a sweep over workers other points of the same commit stay.
    Raises InputError if an existing file is no result file,
    ResourceError if it cannot be written.
    """
    stamp = {"commit": commit(), "date": datetime.date.today().isoformat(), "machine": machine, "session": session()}
    written = []
    for op in dict.fromkeys(row.op for row in rows):
        path = folder / machine / f"{op}.csv"
        new = [Row(**asdict(row) | stamp) for row in rows if row.op == op]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in _ordered([*_remaining(list(_rows(path)), new, whole=op in operations()), *new]):
            writer.writerow({name: _text(value) for name, value in asdict(row).items()})
        write_text(path, text.getvalue())
        written.append(path)
    return written


def _remaining(old: list[Row], new: list[Row], *, whole: bool) -> list[Row]:
    """The earlier rows of an operation that stay. whole: it has a ladder, whose sessions stay or go as a whole."""
    if new[0].point and not new[0].engine:
        again = {row.swept for row in new}
        return [row for row in old if row.swept not in again or _beside(row, new)]
    if new[0].op.startswith(JOB_LADDER):
        sizes = {row.climb[:2] for row in new}
        return [row for row in old if row.climb[:2] not in sizes]
    if not whole:
        again = {(row.climb, row.engine) for row in new}
        return [row for row in old if (row.climb, row.engine) not in again]
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
    """Whether an earlier point over workers stays beside the new ones: another point, measured with the same code."""
    same = row.commit == new[0].commit and (is_exact(row.commit) or row.session == new[0].session)
    return WORKERS in row.setting and same and row.point not in {one.point for one in new}


def _ordered(rows: list[Row]) -> list[Row]:
    """The rows of a file; points over workers, which are saved in any order, in the order of their values."""
    if not any(WORKERS in row.setting and not row.engine for row in rows):
        return rows
    sweeps = list(dict.fromkeys(row.swept for row in rows))
    return sorted(rows, key=lambda row: (sweeps.index(row.swept), _values(row) if WORKERS in row.setting else ()))


def _values(row: Row) -> tuple[int, ...]:
    return tuple(int(value) for value in row.setting.values())


def write_text(path: Path, text: str) -> bool:
    """Replace the file as a whole, its folder made if need be; False, and nothing touched, if it has this text already.

    Raises ResourceError naming the path and the reason.
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
    """The rows of one file as they stand; none if there is no such file."""
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
    """All rows, of one machine and operation if they are named, in the order of the files' names and of their lines.

    Raises InputError naming file and line if one does not hold rows.
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
    """A cell as its field's type; an empty one is None where the field allows it."""
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


def commit() -> str:
    """The commit that is checked out, "-dirty" after it if the package differs; "unknown" outside a checkout."""
    package = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", package, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # an installed copy inside some other checkout is not its commit
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def save_here(rows: list[Row]) -> list[Path]:
    """`save` to results/ of the current directory, under this machine's name; rows on 0 threads under its GPU's."""
    from tilewright.hardware import gpu_name, machine_name

    on_gpu, on_cpu = [row for row in rows if not row.threads], [row for row in rows if row.threads]
    written = save(Path("results"), gpu_name(), on_gpu) if on_gpu else []
    return written + (save(Path("results"), machine_name(), on_cpu) if on_cpu else [])
