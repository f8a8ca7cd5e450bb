"""What logprob computes, in NumPy float64: log-softmax of a @ b + bias at one column per row."""

import numpy as np


def logprob(a, b, targets, bias=None):
    """a (M, K), b (K, N), targets (M,), bias (N,) -> (log-probability of each row's target, float64 (M,); whether the
    target is the row's largest column, the lowest of equals, bool (M,))."""
    logits = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    if bias is not None:
        logits += bias
    every, largest = np.arange(len(logits)), logits.max(axis=1)
    total = np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    return logits[every, targets] - largest - total, logits.argmax(axis=1) == targets
