"""Tables of compiled kernels and of counted traffic."""

from tilewright.bench.kernels.table import KernelRow
from tilewright.bench.kernels.traffic import FORMULAS
from tilewright.bench.report.tables import Table, groups
from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder

SIDE = 4096  # rows and columns of the product whose traffic is shown; a GPU's ladder is timed with it
LANES = 16  # AVX-512, for the rungs of the CPU
SQUARE = f"{SIDE}x{SIDE}x{SIDE}-float32"


def kernel_tables(rows: list[KernelRow]) -> list[Table]:
    """One table per machine: what the compilers made of each kernel."""
    return [_of_machine(machine, found) for machine, found in groups(rows, lambda row: row.machine).items()]


def _of_machine(machine: str, rows: list[KernelRow]) -> Table:
    header = (
        "rung", "kernel", "vector", "multiply-adds", "vector registers", "for sums",
        "registers", "local", "shared", "threads", "occupancy",
    )  # fmt: skip
    cells = tuple(
        (
            row.rung,
            row.kernel,
            _vector(row.vector_bits),
            *map(
                _integer,
                (
                    row.multiply_adds, row.vector_registers, row.sums,
                    row.registers, row.local_bytes, row.shared_bytes, row.threads,
                ),
            ),
            "" if row.occupancy is None else f"{row.occupancy:.0%}",
        )
        for row in rows
    )  # fmt: skip
    origin = ", ".join(sorted({f"commit {row.commit}, {row.date}" for row in rows}))
    return Table(f"Compiled kernels on {machine}; {origin}", header, cells, 3)


def _vector(bits: int | None) -> str:
    return "" if not bits else "scalar" if bits <= 64 else f"{bits} bits"


def _integer(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _count(value: float | None) -> str:
    """Four digits without a decimal point; "" if nothing was counted."""
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def traffic_table(rows: list[Row], ladder: Ladder) -> Table:
    """Counted accesses of matmul's rungs per element of the result, with their rates if a GPU was measured.

    rows: of matmul on all machines.
    """
    square = [row for row in rows if row.size == SQUARE and not row.threads]
    latest = max(((row.date, row.machine) for row in square), default=("", ""))
    measured = {row.rung: row for row in square if (row.date, row.machine) == latest}
    cells = []
    for name, formula in FORMULAS.items():
        if name == "simt.narrow":  # it refuses such a wide product
            continue
        traffic, row = formula(SIDE, SIDE, {**ladder.rungs[name].options, "lanes": LANES}), measured.get(name)
        shared = () if traffic.shared_writes in (None, 0) else (traffic.shared_reads, traffic.shared_writes)
        each = [traffic.reads, traffic.writes, *(shared or (None, None))]
        rates = [
            ""
            if row is None or not counts
            else f"{4e-9 * sum(filter(None, counts)) * row.rows * SIDE / row.median_s:,.0f}"
            for counts in ((traffic.reads, traffic.writes), () if None in shared else shared)
        ]
        cells.append((name, *map(_count, each), *rates))
    header = ("rung", "reads", "writes", "shared reads", "shared writes", "GB/s", "shared GB/s")
    notes = (
        f"GB/s are these accesses, times 4 bytes, over the measured time on {latest[1]}: caches serve what exceeds the "
        "memory's rate.",
        "Tile rungs have their widest tiles here; two limbs count as one element. Matrix units read shared memory "
        "themselves, which is not counted.",
        f"On a CPU reads and writes are loads and stores, with {LANES} lanes, of the inner loops alone for cpu.packed.",
    )
    return Table(f"Accesses per element of the result, M = N = K = {SIDE:,}", header, tuple(cells), 1, notes)
