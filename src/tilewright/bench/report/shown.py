"""Which rows are shown: one session of each ladder, without rungs that no longer exist, the machine measured last
first."""

from collections.abc import Iterator
from dataclasses import replace

from tilewright.bench.report.tables import groups, rate
from tilewright.bench.results import PEER, Row, one_session
from tilewright.ops.core.ladder import Ladder

LIBRARIES = {"torch": "PyTorch", "openvino": "OpenVINO", "halide": "Halide", "opencv": "OpenCV", "scipy": "SciPy"}


def shown(rows: list[Row], ladders: dict[str, Ladder]) -> dict[str, list[Row]]:
    """Operation or job -> its rows. A ladder is left out if it has no rows of rungs that still exist."""
    in_order = [_spelt(row) for some in _latest_first(rows).values() for row in some]
    by_op = groups(in_order, lambda row: row.op)
    for op in by_op.keys() & ladders.keys():
        same = groups(by_op[op], lambda row: (row.machine, row.dtype)).values()
        sessions = (one_session(some, ladders[op].rungs) for some in same)
        by_op[op] = [row for some in sessions for row in _existing(some, ladders[op])]
    return {op: some for op, some in by_op.items() if some}


def _spelt(row: Row) -> Row:
    """The row with the names of libraries as their authors spell them."""
    rung = LIBRARIES.get(row.rung, row.rung) if row.check == PEER else row.rung
    return replace(row, rung=rung, peer=LIBRARIES.get(row.peer, row.peer) if row.peer else row.peer)


def by_machine(by_op: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Machine -> its rows of all operations and jobs, in the order in which machines are shown."""
    return _latest_first([row for rows in by_op.values() for row in rows])


def _latest_first(rows: list[Row]) -> dict[str, list[Row]]:
    """Machine -> its rows. The machine that was measured last is first; equal ones are ordered by name."""
    machines = groups(sorted(rows, key=lambda row: row.machine), lambda row: row.machine)
    return dict(sorted(machines.items(), key=lambda item: max(row.date for row in item[1]), reverse=True))


def _existing(rows: list[Row], ladder: Ladder) -> Iterator[Row]:
    """The rows of peers and of rungs that still exist. If a rung no longer exists, the gain of the next one is computed
    over the rung that is now below it."""
    gone = {row.climb for row in rows if row.check != PEER and row.rung not in ladder.rungs}
    speeds = {(row.climb, row.rung): rate(row)[0] for row in rows}
    for row in rows:
        rung = ladder.rungs.get(row.rung)
        if rung is None or row.climb not in gone:
            if row.check == PEER or rung:
                yield row
            continue
        mine, below = rate(row)[0], speeds.get((row.climb, rung.after or ""))
        yield replace(row, versus_below=mine / below if mine and below else None)
