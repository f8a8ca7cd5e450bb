"""What sample computes, in NumPy float64 with a full sort of every row."""

import numpy as np


def sample(logits, floats, integers, ids, shifts=(), ends=()):
    """(tokens (n,), -1 where there is none; margins (n,)): see `operands.Rules` for the arguments.

    margins: the relative error of a sum, in parts of the sum of all weights, that would change the token.
    """
    edits = [(each, shifts) for each in ends] if len(ends) else [((0, 0), ())] * len(integers)
    rows = zip(np.asarray(logits, np.float32), floats, integers, edits, strict=True)
    found = [_row(row, *rest, ids) for row, *rest in rows]
    tokens, margins = zip(*found, strict=True) if found else ((), ())
    return np.array(tokens, np.float64), np.array(margins, np.float64)


def _row(row, floats, integers, edits, ids):
    """(token, margin) of one row."""
    u, temperature, top_p, min_p, penalty = floats.tolist()
    top_k, seen, seen_end, banned_end, _ = integers.tolist()
    (shifted_end, allowed_end), shifts = edits
    wide = row.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(shifts):
            for i in {int(ids[i]): i for i in (*range(seen, seen_end), *range(banned_end, shifted_end))}.values():
                wide[ids[i]] += shifts[i, 0]
        for token in {*ids[seen:seen_end].tolist()}:
            wide[token] = wide[token] / penalty if wide[token] > 0 else wide[token] * penalty
        if len(shifts):
            for i in {int(ids[i]): i for i in (*range(seen, seen_end), *range(banned_end, shifted_end))}.values():
                wide[ids[i]] += shifts[i, 1]
        scores = wide.astype(np.float32)
    scores[ids[seen_end:banned_end]] = -np.inf
    if shifted_end < allowed_end:
        scores[np.setdiff1d(np.arange(len(row)), ids[shifted_end:allowed_end])] = -np.inf
    if not np.isfinite(row).all() or not np.isfinite(scores.max()):
        return -1, np.inf
    order = np.argsort(-scores, kind="stable")
    if temperature == 0:
        return order[0], np.inf
    wide = scores[order[: top_k or None]].astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((wide - wide[0]) / temperature)
    sums = np.cumsum(weights)
    kept, margin = len(weights), np.inf
    if top_p < 1:
        kept, margin = _reaches(sums, top_p * sums[-1])
        kept += 1
    if min_p > 0:
        kept = min(kept, int((weights >= min_p).sum()))
        with np.errstate(divide="ignore"):  # the relative distance of weights, 0 for equal ones
            margin = min(margin, *np.abs(weights[1:] / min_p - 1)) if len(weights) > 1 and min_p < 1 else margin
    index, near = _reaches(sums[:kept], u * sums[kept - 1])
    return order[index], min(margin, near)


def _reaches(sums, target):
    """(the first index at which the sums reach the target, the distance to its neighbours relative to the last sum)."""
    index = min(int(np.searchsorted(sums, target)), len(sums) - 1)
    near = [target - sums[index - 1]] if index else []
    near += [sums[index] - target] if index < len(sums) - 1 else []
    return index, min(near, default=np.inf) / sums[-1]
