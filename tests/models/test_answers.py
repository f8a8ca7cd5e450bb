"""Labels and scores from logits: by the formula, and the same bits in every company."""

import math

import numpy as np
import pytest

from tilewright.models.answers import sigmoid_answers, softmax_answers


@pytest.mark.parametrize("labels", [1, 2, 5, 9, 40])
def test_answers_of_many_rows_are_those_of_each_row(labels, rng):
    logits = (rng.standard_normal((300, labels)) * rng.choice([0.01, 1, 50], (300, 1))).astype(np.float32)
    logits[7] = 0.25  # all are equal: the lowest label
    for answers in (softmax_answers, sigmoid_answers):
        found = answers(logits, str)
        assert found == [answers(logits[i : i + 1], str)[0] for i in range(300)]
        assert found[7]["label"] == "0" and [each["logits"] for each in found] == logits.tolist()
        assert [each["label"] for each in found] == [str(int(np.argmax(row))) for row in logits]
        assert answers(logits[:0], str) == []
    both = zip(softmax_answers(logits, str), sigmoid_answers(logits, str), strict=True)
    for row, (softmax, sigmoid) in zip(logits.tolist(), both, strict=True):
        assert softmax["score"] == pytest.approx(1 / sum(math.exp(x - max(row)) for x in row), rel=1e-12)
        assert sigmoid["score"] == pytest.approx(1 / (1 + math.exp(-max(row))), rel=1e-12)
