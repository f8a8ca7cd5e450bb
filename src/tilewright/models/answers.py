"""The answer of a text classifier from one text's logits: the likeliest label and its probability."""

from collections.abc import Callable
from typing import TypedDict

import numpy as np


class Answer(TypedDict):
    """label: the name of the likeliest class. score: its probability. logits: (num_labels,)."""

    label: str
    score: float
    logits: list[float]


def softmax_answer(logits: np.ndarray, label: Callable[[int], str]) -> Answer:
    """float32 (num_labels,) -> the label of the largest logit, or the lowest of several equal ones, with its
    softmax."""
    odds = np.exp(logits.astype(np.float64) - logits.max())
    best = int(np.argmax(logits))
    return {"label": label(best), "score": float(odds[best] / odds.sum()), "logits": logits.tolist()}


def sigmoid_answer(logits: np.ndarray, label: Callable[[int], str]) -> Answer:
    """The same with the sigmoid of the largest logit, for labels that do not exclude each other, or for a single
    label."""
    best = int(np.argmax(logits))
    score = 1 / (1 + np.exp(-np.float64(logits[best])))
    return {"label": label(best), "score": float(score), "logits": logits.tolist()}
