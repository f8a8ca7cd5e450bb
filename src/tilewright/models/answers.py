"""The answers of a text classifier from its logits: for each text the likeliest label and its probability."""

from collections.abc import Callable
from typing import TypedDict

import numpy as np


class Answer(TypedDict):
    """label: the name of the likeliest class. score: its probability. logits: (num_labels,)."""

    label: str
    score: float
    logits: list[float]


def softmax_answers(logits: np.ndarray, label: Callable[[int], str]) -> list[Answer]:
    """float32 (n, num_labels), finite -> of each row the label of the largest logit, or the lowest of several equal
    ones, with its softmax."""
    odds = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return _answers(logits, 1 / odds.sum(axis=1), label)  # the odds of the likeliest label are 1


def sigmoid_answers(logits: np.ndarray, label: Callable[[int], str]) -> list[Answer]:
    """The same with the sigmoid of the largest logit, for labels that do not exclude each other, or for a single
    label."""
    with np.errstate(over="ignore"):  # exp may be infinite, then the score is 0
        return _answers(logits, 1 / (1 + np.exp(-logits.max(axis=1).astype(np.float64))), label)


def _answers(logits: np.ndarray, scores: np.ndarray, label: Callable[[int], str]) -> list[Answer]:
    best = logits.argmax(axis=1).tolist()
    columns = zip(best, scores.tolist(), logits.tolist(), strict=True)
    return [{"label": label(number), "score": score, "logits": row} for number, score, row in columns]
