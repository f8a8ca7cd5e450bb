import numpy as np
import pytest

from tilewright.models.noise import noise


def test_noise_belongs_to_its_image():
    whole = noise(7, 0, 50, 100)
    assert whole.dtype == np.float32 and noise(7, 13, 20, 100).tobytes() == whole[13:33].tobytes()
    assert noise(8, 0, 50, 100).tobytes() != whole.tobytes()
    assert len(np.unique(np.concatenate([whole.ravel(), noise(8, 0, 50, 100).ravel()]))) > 9990
    many = noise(2**63 - 1, 10**12, 1000, 100)
    assert abs(many.mean()) < 0.02 and many.std() == pytest.approx(1, abs=0.01)
    assert abs(np.corrcoef(many[:-1].ravel(), many[1:].ravel())[0, 1]) < 0.02
