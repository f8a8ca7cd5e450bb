"""The jobs that a sweep runs: right results whose bits no batch changes, with small models."""

import numpy as np
import pytest

from dcgan_models import SMALL
from tilewright.bench.sweep_kinds import JOBS, KINDS, Setting
from tilewright.errors import UsageError
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig

CONFIGS = {
    "sentiment": TextCNNConfig(vocab_size=50, hidden_size=8, num_filters=4, hidden_sizes=(8,)),
    "gpt2": GPT2Config(vocab_size=50, n_layer=1, n_head=2, n_embd=8, n_positions=32, eos_token_id=None),
    "dcgan": SMALL,
    "convolve": None,
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_right_and_no_batch_changes_its_bits(name):
    job = KINDS[name](Setting(name, config=CONFIGS[name]), 9)
    error, allowed = job.error()
    assert error <= allowed
    whole = job.run(9, 0).copy()
    assert len(whole) == 9 and np.isfinite(whole).all() and whole.std() > 0
    for batch in (1, 4) if name != "convolve" else ():
        assert job.run(9, batch).tobytes() == whole.tobytes()
    assert job.run(7, 0)[: 7 - job.edge].tobytes() == whole[: 7 - job.edge].tobytes()


def test_a_volume_has_no_batches():
    with pytest.raises(UsageError, match="a volume is one record"):
        KINDS["convolve"](Setting("convolve"), 4).run(4, 2)
