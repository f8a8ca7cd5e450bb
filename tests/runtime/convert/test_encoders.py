"""State dicts of BERTs, as transformers saved them before version 5."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bert_models import saved
from tilewright.errors import InputError
from tilewright.runtime.convert.models import convert
from tilewright.runtime.load import load


def test_the_positions_in_old_state_dicts_are_no_weights(tmp_path):
    """Every state dict of a BERT had this tensor of integers, and none could be converted."""
    theirs, _ = saved("bert", 0, tmp_path / "old")
    (tmp_path / "old" / "model.safetensors").unlink()
    state = {name: array.clone() for name, array in theirs.state_dict().items()}
    save_file(state | {"bert.embeddings.position_ids": torch.arange(70)[None]}, tmp_path / "old" / "state.safetensors")
    convert(str(tmp_path / "old" / "state.safetensors"), str(tmp_path / "new"))
    ids = np.array([2, 7, 9, 3])
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits.numpy()
    model = load(tmp_path / "new", device="cpu")
    assert np.abs(model.logits([ids]) - wanted).max() < 2e-6 * np.abs(wanted).max()
    assert model.tokenizer is not None


def test_an_encoder_whose_modules_would_be_lost_is_refused(tmp_path):
    """It was converted, and its vectors were means, whatever its pooling was."""
    theirs, _ = saved("bert", 0, tmp_path / "old")
    theirs.bert.save_pretrained(tmp_path / "old")
    state = tmp_path / "old" / "state.safetensors"
    save_file({name: array.clone() for name, array in theirs.bert.state_dict().items()}, state)
    (tmp_path / "old" / "modules.json").write_text("[]")
    with pytest.raises(InputError, match=r"modules\.json: lists pooling and other modules, which are not converted"):
        convert(str(state), str(tmp_path / "new"))
    (tmp_path / "old" / "modules.json").unlink()
    convert(str(state), str(tmp_path / "new"))
    assert load(tmp_path / "new", device="cpu").embed([[2, 7, 3]]).shape == (1, theirs.config.hidden_size)
