"""Small untrained models in the place of those that come with the package."""

from gpt2_models import save
from tilewright.runtime import named_models
from tilewright.runtime.convert.models import init_dcgan, init_textcnn

SMALL = {"vocab_size": 257, "sequence_length": 12, "hidden_size": 8, "num_filters": 4, "kernel_sizes": (3,)}
CARD = "---\ntask: does something\nfigures: 1 of 2\nlicense: MIT\n---\n# A card\n"


def stand_ins(folder) -> None:
    """poet, critic and portraits in `folder`; both that read text have a tokenizer of bytes."""
    folder.mkdir()
    save(folder / "poet", n_positions=160)
    init_textcnn(str(folder / "critic"), 1, **SMALL, hidden_sizes=(), pad_token_id=256)
    (folder / "critic/tokenizer.json").write_bytes((folder / "poet/tokenizer.json").read_bytes())
    init_dcgan(str(folder / "portraits"), 1, channels=(4, 4, 3))
    for name in named_models.NAMES:
        (folder / name / named_models.CARD).write_text(CARD)
