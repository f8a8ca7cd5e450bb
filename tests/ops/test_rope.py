"""rope beside transformers, in place, in 16 bits, and what it refuses."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops.rope import inverse_frequencies, prepare, rope


def test_it_is_transformers(rng):
    torch = pytest.importorskip("torch")
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    H, D, R = 3, 20, 12
    q, k = rng.standard_normal((2, 5, H * D), dtype=np.float32)
    positions, frequencies = np.array([0, 7, 700, 1, 33]), inverse_frequencies(R, 10000.0)
    angles = torch.from_numpy(positions).float()[:, None] * torch.from_numpy(frequencies)
    both = torch.cat((angles, angles), dim=-1)[None]
    given = [torch.from_numpy(x).view(1, 5, H, D).transpose(1, 2) for x in (q, k)]
    wanted = apply_rotary_pos_emb(*given, both.cos(), both.sin())
    rotation = prepare(frequencies, length=701)
    for x, other in zip((q, k), wanted, strict=True):
        found = rope(x, positions, rotation, heads=H)
        assert np.abs(found - other.transpose(1, 2).reshape(5, -1).numpy()).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_in_place_in_rows_that_lie_apart(dtype, rng):
    wide = rng.standard_normal((6, 50), dtype=np.float32).astype(dtype)
    rotation, positions = prepare(inverse_frequencies(8, 50.0), length=20), rng.integers(0, 20, 6)
    kept, part = wide.copy(), wide[:, 3:45]
    wanted = rope(np.ascontiguousarray(part), positions, rotation, heads=3)
    assert wanted.dtype == np.float32
    assert rope(part, positions, rotation, heads=3, out=part) is part
    assert part.tobytes() == wanted.astype(dtype).tobytes()
    assert (wide[:, :3] == kept[:, :3]).all() and (wide[:, 45:] == kept[:, 45:]).all()


def test_scores_depend_on_the_distance_alone(rng):
    rotation = prepare(inverse_frequencies(16, 100.0), length=300)
    q, k = rng.standard_normal((2, 1, 16), dtype=np.float32)
    found = [
        float(rope(q, [at + 9], rotation, heads=1)[0] @ rope(k, [at], rotation, heads=1)[0]) for at in (0, 100, 290)
    ]
    assert np.ptp(found) < 1e-4 and abs(found[0]) > 1e-3


def test_what_does_not_fit_is_named():
    x, turns = np.ones((2, 12), np.float32), prepare(inverse_frequencies(4, 100.0), length=9)
    short = np.empty(x.shape, ml_dtypes.bfloat16)
    for words, call in {
        r"rope: positions[1] is 9; the rotation has rows 0 to 8": lambda: rope(x, [0, 9], turns, heads=2),
        "rope: positions has shape (3,); (2,)": lambda: rope(x, [0, 1, 2], turns, heads=2),
        "rope: x is float32 (12,), and heads 2": lambda: rope(x[0], [0], turns, heads=2),
        "rope: x is float64": lambda: rope(x.astype(np.float64), [0, 1], turns, heads=2),
        "rope: out is bfloat16 and x float32": lambda: rope(x, [0, 1], turns, heads=2, out=short),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)
