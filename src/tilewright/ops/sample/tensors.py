"""Drawing tokens on a GPU: what `sample` runs there, and `draw`, which waits for nothing, for a step of generation."""

import numpy as np

from tilewright.ops.sample.ladder import ladder
from tilewright.ops.sample.operands import (
    AFTER,
    ALLOWED_END,
    BANNED_END,
    BEFORE,
    BEST,
    PENALTY,
    SEEN,
    SEEN_END,
    SHIFTED_END,
    Drawn,
    Rules,
)
from tilewright.ops.sample.problem import Problem


def sample_tensor(logits, given: Rules) -> Drawn:
    """`tilewright.ops.sample.sample` of logits float32, bfloat16 or float16 (n, V) on a GPU, arguments checked. Rules
    and results stay on the host, but for the rows' numbers."""
    import torch

    raw = logits.float().contiguous()
    tokens = torch.full((len(raw),), -1, dtype=torch.int64, device=raw.device)
    numbers, words = (torch.from_numpy(np.ascontiguousarray(part)).to(raw.device) for part in given[:2])
    draw(raw, numbers, words, tokens, scores=_edited(raw, given))
    logarithms, best = _best(raw, given.words[:, BEST])
    return Drawn(tokens.cpu().numpy(), logarithms, best)


def draw(logits, numbers, words, tokens, scores=None) -> None:
    """tokens int64 (n,), -1 for a row with a NaN or an infinity, of logits float32 (n, V), by numbers and words as in
    `Rules`: contiguous tensors on a GPU, where nothing waits for the host. scores: logits with penalties and banned
    tokens in them, if there are any."""
    rung = ladder.choose(Problem(logits.shape[1], device="cuda"))
    rung.run(logits, logits if scores is None else scores, numbers, words, tokens)


def _edited(raw, given: Rules):
    """Scores: the logits, or a copy in which penalties, shifts, banned and allowed tokens are."""
    import torch

    if not len(given.ids):
        return raw
    scores, words, ends = raw.clone(), given.words, given.ends
    ids = torch.from_numpy(given.ids).to(raw.device)
    shifts = torch.from_numpy(given.shifts).to(raw.device)

    def places(first: np.ndarray, last: np.ndarray):
        """(row, place in ids) of a part of ids, in order."""
        counts = last - first
        rows = np.repeat(np.arange(len(words)), counts)
        at = np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        return (torch.from_numpy(part).to(raw.device) for part in (rows, at))

    rows, at = places(words[:, SEEN], words[:, SEEN_END])
    x = raw[rows, ids[at]].double()
    x = x + shifts[at, BEFORE] if len(shifts) else x
    penalty = torch.from_numpy(given.numbers[:, PENALTY].copy()).to(raw.device)[rows]
    x = torch.where(x > 0, x / penalty, x * penalty)
    scores[rows, ids[at]] = (x + shifts[at, AFTER] if len(shifts) else x).float()
    if len(ends):
        rows, at = places(words[:, BANNED_END], ends[:, SHIFTED_END])
        x = raw[rows, ids[at]].double() + shifts[at, BEFORE]
        scores[rows, ids[at]] = (x + shifts[at, AFTER]).float()
    rows, at = places(words[:, SEEN_END], words[:, BANNED_END])
    scores[rows, ids[at]] = -torch.inf
    if len(ends) and (ends[:, SHIFTED_END] < ends[:, ALLOWED_END]).any():
        rows, at = places(ends[:, SHIFTED_END], ends[:, ALLOWED_END])
        allowed = scores[rows, ids[at]]
        scores[rows] = -torch.inf
        scores[rows, ids[at]] = allowed
    return scores


def _best(raw, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(float64 (n,) logarithms of the sums of exp, int64 (n, most) best tokens) of the rows that want them."""
    import torch

    n, V = raw.shape
    most = min(int(wanted.max(initial=0)), V)
    logarithms, best = np.zeros(n), np.zeros((n, max(most, 0)), np.int64)
    if len(asked := np.flatnonzero(wanted >= 0)):
        some = raw[torch.from_numpy(asked).to(raw.device)]
        logarithms[asked] = some.double().logsumexp(1).cpu().numpy()
        order = (some + 0.0).sort(dim=1, descending=True, stable=True).indices  # 0.0 and -0.0 are equal
        best[asked] = order[:, : best.shape[1]].cpu().numpy()
    return logarithms, best
