"""One table for who asks how fast: each job at its first sizes, on every machine that measured it."""

from tilewright.bench.report.tables import Table, groups, three, times
from tilewright.bench.results import PEER, Row

JOBS = {"sentiment": "sentences", "gpt2": "tokens", "dcgan": "images", "volumes": ""}  # what is counted a second
SIZES = 2  # of a job that are shown; docs/results has all


def headline_tables(by_op: dict[str, list[Row]]) -> list[Table]:
    """Our rows of each job on each machine, and how many times faster than its peer each was."""
    lines = []
    for op, unit in JOBS.items():
        for some in groups(by_op.get(op, []), lambda row: row.machine).values():
            ours = [row for row in some if row.check != PEER]
            shown = list(dict.fromkeys(row.size for row in ours))[:SIZES]
            for row in ours:
                if row.size in shown:
                    ratio = times(row.peer_ratio) if row.peer else ""
                    lines.append(
                        (op, row.machine, row.size, row.dtype, row.rung, _rate(row, unit), row.peer or "", ratio)
                    )
    header = ("job", "machine", "size", "dtype", "what", "speed", "beside", "x as fast")
    return [Table("The jobs at their first sizes", header, tuple(lines), 5)] if lines else []


def _rate(row: Row, unit: str) -> str:
    return f"{three(row.rows / row.median_s)} {unit}/s" if unit else f"{three(row.median_s * 1e3)} ms"
