"""What `sample` does with logits on a GPU besides drawing: penalties, shifts, bans, and the best tokens."""

import numpy as np
import torch

from tilewright.ops.sample.operands import END, FLOAT, INTEGER, SHIFT, Rules


def edited(logits, given: Rules):
    """Scores: logits float32 (n, V), or a copy with penalties, shifts, banned and allowed tokens applied."""
    if not len(given.ids):
        return logits
    scores, integers, ends, shifts = logits.clone(), given.integers, given.ends, None
    ids = torch.from_numpy(given.ids).to(logits.device)
    if len(given.shifts):
        shifts = torch.from_numpy(given.shifts).to(logits.device)
    penalties = torch.from_numpy(given.floats[:, FLOAT.penalty].copy()).to(logits.device)

    def indices_of(first: np.ndarray, last: np.ndarray):
        """(row, index in ids) of ids[first[row]:last[row]] for all rows."""
        counts = last - first
        rows = np.repeat(np.arange(len(integers)), counts)
        at = np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        return (torch.from_numpy(part).to(logits.device) for part in (rows, at))

    def shift(first: np.ndarray, last: np.ndarray, *, penalised: bool) -> None:
        """Shift, and perhaps penalise, the tokens ids[first:last]."""
        rows, at = indices_of(first, last)
        x = logits[rows, ids[at]].double()
        x = x if shifts is None else x + shifts[at, SHIFT.before]
        x = torch.where(x > 0, x / penalties[rows], x * penalties[rows]) if penalised else x
        scores[rows, ids[at]] = (x if shifts is None else x + shifts[at, SHIFT.after]).float()

    shift(integers[:, INTEGER.seen], integers[:, INTEGER.seen_end], penalised=True)
    if len(ends):
        shift(integers[:, INTEGER.banned_end], ends[:, END.shifted_end], penalised=False)
    rows, at = indices_of(integers[:, INTEGER.seen_end], integers[:, INTEGER.banned_end])
    scores[rows, ids[at]] = -torch.inf
    if len(ends) and (ends[:, END.shifted_end] < ends[:, END.allowed_end]).any():
        rows, at = indices_of(ends[:, END.shifted_end], ends[:, END.allowed_end])
        allowed = scores[rows, ids[at]]
        scores[rows] = -torch.inf
        scores[rows, ids[at]] = allowed
    return scores


def best_tokens(logits, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(float64 (n,) logarithms of the sum of exp, int64 (n, most) best tokens) of logits (n, V), for the rows whose
    count is not negative. counts: int64 (n,), how many of the best tokens a row wants."""
    n, V = logits.shape
    most = min(int(counts.max(initial=0)), V)
    logarithms, best = np.zeros(n), np.zeros((n, max(most, 0)), np.int64)
    if len(wanted := np.flatnonzero(counts >= 0)):
        rows = logits[torch.from_numpy(wanted).to(logits.device)]
        logarithms[wanted] = rows.double().logsumexp(1).cpu().numpy()
        order = (rows + 0.0).sort(dim=1, descending=True, stable=True).indices  # 0.0 and -0.0 are equal
        best[wanted] = order[:, : best.shape[1]].cpu().numpy()
    return logarithms, best
