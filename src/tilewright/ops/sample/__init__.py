"""A token a row of logits, by chance or greedily: the end of a step of generation.

from tilewright.ops.sample import rules, sample
tokens = sample(logits, rules(u, (50, 0.9, 0.0), temperature=0.8)).tokens       # (n, V) -> (n,)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.backend import DEVICE, backend_of
from tilewright.ops.core.rows import as_rows
from tilewright.ops.sample.ladder import ladder
from tilewright.ops.sample.operands import BEST, Drawn, Edits, Rules, rules
from tilewright.ops.sample.problem import Problem

__all__ = ["Drawn", "Edits", "Problem", "Rules", "ladder", "rules", "sample"]

MOST = 1 << 31  # tokens of a vocabulary: a place is kept in 32 bits


def sample(logits, given: Rules) -> Drawn:
    """The token of each row of logits, float32 or bfloat16 (n, V), by the rules of that row.

    added before -> repetition penalty -> added after -> banned and allowed tokens -> temperature -> top_k -> top_p ->
    min_p -> inverse CDF. What changes a logit is computed in float64 and rounded once. Tokens are ordered by
    falling logit, equal ones by rising id; top_k, top_p and min_p each keep a prefix of that order, and u chooses the
    first token at which the running sum of the weights reaches u times their total. A row's answer depends on that row
    and its rules alone. Weights and sums are float64: another token than that of an exact sum is possible where u lies
    within some 1e-13 of where two tokens meet. Logits on a GPU, also float16, are sampled there; rules and
    results are NumPy's.
    Raises UsageError for parts of other shapes or a token id that is none.
    """
    backend = backend_of(logits)
    array = backend.take("sample", "logits", logits)
    n = len(array) if array.ndim == 2 else -1
    if array.ndim != 2 or not 0 < array.shape[1] < MOST:
        raise UsageError(f"sample: logits has shape {tuple(array.shape)}; (n, V) with V from 1 to {MOST - 1} is wanted")
    numbers, words, ids, shifts, ends = given
    shifted = len(shifts) == len(ids) and ends.shape == (n, 2)
    if numbers.shape != (n, 5) or words.shape != (n, 5) or (len(ends) and not shifted):
        raise UsageError(f"sample: there are {n} rows of logits, and rules for {len(numbers)}")
    V = array.shape[1]
    if len(ids) and not 0 <= ids.min() <= ids.max() < V:
        raise UsageError(f"sample: token ids go from {ids.min()} to {ids.max()}; 0 to {V - 1} are there")
    if backend is DEVICE and n:
        from tilewright.ops.sample.draw import sample_tensor

        return sample_tensor(array, given)
    most = min(int(np.maximum.reduce(words[:, BEST], initial=0)), V)
    chosen, logarithms = np.zeros((n, 1 + max(most, 0)), np.int64), np.zeros(n)
    if n:
        ladder.choose(Problem(V)).run(as_rows(array), given, chosen, logarithms)
    return Drawn(chosen[:, 0], logarithms, chosen[:, 1:])
