"""The compiled kernels of an operation as rows: results/<machine>/kernels_<op>.csv."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from tilewright.bench.climb import parts
from tilewright.bench.kernels.compiled import Compiled, compiled_kernels
from tilewright.bench.results import KERNELS, commit, write_text
from tilewright.errors import InputError
from tilewright.formats.files import naming
from tilewright.hardware import gpu_name, machine_name
from tilewright.hardware.gpu import no_gpu
from tilewright.ops.core.ladder import Rung


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a rung, with the fields of `Compiled` and `Loop`. vector_bits: width of its multiply-adds, 0 on a
    GPU. sums: vector registers that hold sums. None is an empty cell of the file."""

    op: str
    rung: str
    kernel: str
    size: str
    vector_bits: int | None
    multiply_adds: int | None
    vector_registers: int | None
    sums: int | None
    registers: int | None
    local_bytes: int | None
    shared_bytes: int | None
    threads: int | None
    occupancy: float | None
    commit: str = ""
    date: str = ""
    machine: str = ""


def case_for(op: str, rung: Rung) -> tuple[Any, list[str]]:
    """(the first problem of the ladder that the rung accepts, what this machine lacks to run it)."""
    _, spec = parts(op)
    every = spec.sizes() if rung.name.startswith("cpu.") else spec.device_sizes()
    reasons = {case: set(rung.refuses(case.problem)) for case in every}
    lacking = set.intersection(*reasons.values())
    case = min(every, key=lambda case: len(reasons[case]))
    missing = no_gpu() if case.device != "cpu" else None
    return case, sorted(lacking | {missing} if missing else lacking)


def rows_of(op: str, rung: Rung, case: Any) -> Iterator[KernelRow]:
    """Run the rung once. Yield a row for each kernel that has multiply-adds in a loop, or that runs on a GPU."""
    machine = machine_name() if case.device == "cpu" else gpu_name()
    for kernel in compiled_kernels(op, rung, case):
        if kernel.loop or kernel.threads:
            yield _row(op, rung, case, kernel, machine)


def _row(op: str, rung: Rung, case: Any, kernel: Compiled, machine: str) -> KernelRow:
    loop, on_gpu = kernel.loop, kernel.threads is not None
    return KernelRow(
        op, rung.name, kernel.name, case.name,
        vector_bits=loop.bits if loop and not on_gpu else None,
        multiply_adds=loop.multiply_adds if loop else None,
        vector_registers=loop.registers if loop and not on_gpu else None,
        sums=loop.sums if loop and not on_gpu else None,
        registers=kernel.registers, local_bytes=kernel.local, shared_bytes=kernel.shared, threads=kernel.threads,
        occupancy=kernel.occupancy,
        commit=commit(), date=datetime.date.today().isoformat(), machine=machine,
    )  # fmt: skip


def save(folder: Path, rows: list[KernelRow]) -> list[Path]:
    """Write rows to folder/<machine>/kernels_<op>.csv. They replace earlier rows of the same rungs."""
    written = []
    for machine, op in dict.fromkeys((row.machine, row.op) for row in rows):
        path = folder / machine / f"{KERNELS}{op}.csv"
        new = [row for row in rows if (row.machine, row.op) == (machine, op)]
        again = {row.rung for row in new}
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(KernelRow)], lineterminator="\n")
        writer.writeheader()
        for row in [*(row for row in _read(path) if row.rung not in again), *new]:
            cells = asdict(row).items()
            writer.writerow({name: f"{x:.4g}" if isinstance(x, float) else "" if x is None else x for name, x in cells})
        write_text(path, text.getvalue())
        written.append(path)
    return written


def read(folder: Path, op: str) -> list[KernelRow]:
    """The rows of an operation on all machines. Raises InputError, which names the file, if a file holds other rows."""
    return [row for path in sorted(folder.glob(f"*/{KERNELS}{op}.csv")) for row in _read(path)]


def _read(path: Path) -> list[KernelRow]:
    if not path.exists():
        return []
    with naming(path, "read"):
        text = path.read_text()
    kinds = get_type_hints(KernelRow)
    try:
        return [
            KernelRow(**{name: _value(kinds[name], text) for name, text in cells.items()})
            for cells in csv.DictReader(io.StringIO(text, newline=""))
        ]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        remedy = "remove it and run `tilewright show OP --save` again"
        raise InputError(f"the file has no rows of kernels: {error}", path=path, remedy=remedy) from error


def _value(kind: Any, text: str) -> Any:
    """Convert a cell to the type of its field."""
    if kind is str:
        return text
    if not text:
        return None
    return float(text) if kind == float | None else int(text)
