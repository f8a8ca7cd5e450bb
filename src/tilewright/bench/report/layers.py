"""Layer x rung: how fast each rung of an operation computes each layer of a model, and which one wins it."""

from tilewright.bench.report.tables import Table, default_row, device_of, groups, origin, rate, row_notes, three
from tilewright.bench.results import PEER, Row
from tilewright.ops.core.ladder import Ladder

LAYERED = ("conv_transpose2d",)  # operations whose sizes are the layers of one model
FASTEST, DEFAULT = "fastest rung", "runs by default"


def layer_tables(rows: list[Row], ladder: Ladder) -> list[Table]:
    """A table per machine, dtype and number of threads that has several layers; none for other operations.

    rows: of one session of a ladder, as `shown` gives them.
    """
    if ladder.op not in LAYERED:
        return []
    tables = []
    for some in groups(rows, lambda row: (row.machine, row.dtype, row.threads)).values():
        layers = groups(some, lambda row: row.label or row.size)
        if len(layers) > 1:
            tables.append(_table(some, layers, ladder))
    return tables


def _table(rows: list[Row], layers: dict[str, list[Row]], ladder: Ladder) -> Table:
    """A line per rung and peer, a column per layer, then the rung that wins each layer and the one that runs."""
    cells = {(row.rung, name): three(rate(row)[0]) for name, some in layers.items() for row in some}
    own = [name for name in ladder.rungs if any((name, layer) in cells for layer in layers)]
    peers = [row.rung for row in rows if row.check == PEER]
    lines = [(name, *(cells.get((name, layer), "") for layer in layers)) for name in dict.fromkeys([*own, *peers])]
    best = [
        max((row for row in some if row.check != PEER), key=lambda row: rate(row)[0] or 0.0, default=None)
        for some in layers.values()
    ]
    chosen = [default_row(some, ladder) for some in layers.values()]
    for name, found in ((FASTEST, best), (DEFAULT, chosen)):
        lines.append((name, *(row.rung if row else "" for row in found)))
    first = rows[0]
    caption = f"{first.op}, {first.dtype}, {device_of(first.threads)}: {rate(first)[1]} of each layer; {origin(rows)}"
    return Table(caption, ("rung", *layers), tuple(lines), 1, tuple(row_notes(rows)))
