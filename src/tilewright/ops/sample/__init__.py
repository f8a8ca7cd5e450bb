"""One token per row of logits, by chance or greedily: the last step of generation.

from tilewright.ops.sample import rules, sample
tokens = sample(logits, rules(u, (50, 0.9, 0.0), temperature=0.8)).tokens       # (n, V) -> (n,)

`draw` writes the tokens of GPU tensors to a GPU tensor and does not wait, so a CUDA graph can capture it.
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import DEVICE, arguments_of
from tilewright.ops.core.gpu.tensors import kind
from tilewright.ops.core.rows import as_rows
from tilewright.ops.gemm.operands import PEAK, peaks_of
from tilewright.ops.sample.ladder import ladder
from tilewright.ops.sample.operands import INTEGER, Drawn, Edits, Rules, rules
from tilewright.ops.sample.problem import Problem

__all__ = ["PEAK", "Drawn", "Edits", "Problem", "Rules", "draw", "ladder", "peaks_of", "rules", "sample"]

MOST = (1 << 31) - 4095  # tokens of a vocabulary: 32 bits hold a token id, and the end of a GPU's last step of 4,096


def sample(logits, given: Rules) -> Drawn:
    """The token of each row of logits, float32 or bfloat16 (n, V), by the rules of that row.

    shifts before -> repetition penalty -> shifts after -> banned and allowed tokens -> temperature -> top_k -> top_p ->
    min_p -> inverse CDF. A changed logit is computed in float64 and rounded once. Tokens are ordered by falling logit,
    equal ones by rising id. top_k, top_p and min_p each cut that order off; u chooses the first token at which the
    running sum of the weights reaches u times their total. A row's token depends on that row and its rules alone.
    Weights and sums are float64: the token can differ from that of an exact sum only where u is within about 1e-13 of
    the border between two tokens. Logits on a GPU, also float16, are sampled there; rules and results are NumPy arrays.
    Raises UsageError for arrays of other shapes, or a token id outside the vocabulary.
    """
    arguments = arguments_of(logits)
    array = arguments.take("sample", "logits", logits)
    n = len(array) if array.ndim == 2 else -1
    if array.ndim != 2 or not 0 < array.shape[1] < MOST:
        raise UsageError(f"sample: logits has shape {tuple(array.shape)}; (n, V) with V from 1 to {MOST - 1} is wanted")
    floats, integers, ids, shifts, ends = given
    shifted = len(shifts) == len(ids) and ends.shape == (n, 2)
    if floats.shape != (n, 5) or integers.shape != (n, 5) or (len(ends) and not shifted):
        raise UsageError(f"sample: there are {n} rows of logits, and rules for {len(floats)}")
    V = array.shape[1]
    if len(ids) and not 0 <= ids.min() <= ids.max() < V:
        raise UsageError(f"sample: token ids go from {ids.min()} to {ids.max()}; they must be 0 to {V - 1}")
    if arguments is DEVICE and n:
        return _sample_tensor(array, given)
    most = min(int(np.maximum.reduce(integers[:, INTEGER.best], initial=0)), V)
    chosen, logarithms = np.zeros((n, 1 + max(most, 0)), np.int64), np.zeros(n)
    if n:
        ladder.choose(Problem(V)).run(as_rows(array), given, chosen, logarithms)
    return Drawn(chosen[:, 0], logarithms, chosen[:, 1:])


def draw(logits, floats, integers, tokens, scores=None, peaks=None) -> None:
    """Write tokens int64 (n,), -1 for a row with a NaN or an infinity, of logits float32 (n, V). Nothing waits.

    floats, integers: as in `Rules`. scores: the logits with penalties and banned tokens applied, None for the logits
    themselves. peaks: float32 (n, peaks_of(V)) of the logits, see `ops.matmul.matmul_peaks`, or None; not with
    scores. All are tensors on one GPU, contiguous, but rows of logits may have a stride. What is between them is not
    read. Raises UsageError for other strides.
    """
    n, V = logits.shape
    if logits.stride(1) != 1 or (scores is not None and scores.stride() != logits.stride()):
        found = [tuple(x.stride()) for x in (logits, scores) if x is not None]
        raise UsageError(f"draw: logits and scores have strides {found}; equal ones are wanted, 1 along a row")
    if peaks is not None:
        fits = tuple(peaks.shape) == (n, peaks_of(V)) and peaks.is_contiguous() and kind(peaks) == "float32"
        if scores is not None or not fits:
            what = f"peaks is {kind(peaks)} {tuple(peaks.shape)} with strides {peaks.stride()}"
            raise UsageError(f"draw: {what}; float32 {(n, peaks_of(V))} without gaps is wanted, and no scores")
    rung = ladder.choose(Problem(V, device="cuda"))
    rung.run(logits, logits if scores is None else scores, floats, integers, tokens, peaks)


def _sample_tensor(logits, given: Rules) -> Drawn:
    """`sample` for a tensor on a GPU, arguments checked."""
    import torch

    from tilewright.ops.sample.tensors import best_tokens, edited

    logits = logits.float().contiguous()
    tokens = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
    floats, integers = (torch.from_numpy(np.ascontiguousarray(part)).to(logits.device) for part in given[:2])
    draw(logits, floats, integers, tokens, edited(logits, given))
    logarithms, best = best_tokens(logits, given.integers[:, INTEGER.best])  # while the GPU draws
    return Drawn(tokens.cpu().numpy(), logarithms, best)
