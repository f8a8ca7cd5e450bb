"""What drawn faces look like: numbers and colours from a counter-based generator, of a face's seed and number alone.

Lengths are in half pictures. A trait is float32 (n, 1, 1), a colour (n, 1, 1, 3) with values from 0 to 1.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

NUMBERS = 160  # random numbers a face may use
SKINS = (
    (255, 226, 203),
    (247, 205, 172),
    (233, 182, 142),
    (205, 145, 103),
    (168, 108, 72),
    (126, 80, 52),
    (86, 54, 38),
)
HAIRS = (
    (26, 22, 24), (44, 30, 26), (70, 44, 30), (104, 68, 42), (138, 86, 50), (150, 60, 34), (198, 100, 44),
    (216, 172, 98), (236, 214, 160), (146, 144, 144), (224, 222, 220), (206, 92, 140), (66, 104, 180),
)  # fmt: skip
EYES = ((62, 38, 22), (92, 58, 30), (120, 92, 44), (74, 112, 62), (70, 118, 160), (96, 110, 124))
CLOTHES = (
    (196, 62, 58), (226, 150, 58), (232, 204, 96), (92, 150, 92), (58, 128, 134), (66, 96, 166), (116, 84, 150),
    (212, 128, 150), (238, 234, 226), (126, 128, 134), (58, 60, 70),
)  # fmt: skip
WALLS = (
    (178, 206, 222), (226, 208, 178), (200, 222, 190), (226, 190, 190), (202, 190, 222), (236, 226, 204),
    (120, 146, 164), (152, 124, 110), (98, 116, 104), (92, 88, 116), (232, 176, 120), (206, 208, 210),
)  # fmt: skip
# top, side: hair beyond the skull; back, flare: where long hair ends, and how much it widens; line, arch: the hairline
# in the middle, and how far it falls to the temples; slant: of a parting; wave, curl: of the edge, inside; bun: radius
STYLES = {
    "bald": (-0.10, -0.08, -0.6, 0.00, -0.80, 0.00, 0.00, 0.000, 0.0, 0.00),
    "cropped": (0.02, 0.01, -0.1, 0.00, -0.40, 0.16, 0.00, 0.000, 0.3, 0.00),
    "parted": (0.10, 0.03, -0.1, 0.00, -0.36, 0.10, 0.20, 0.006, 0.0, 0.00),
    "quiff": (0.20, 0.02, -0.1, 0.00, -0.38, 0.12, -0.08, 0.012, 0.0, 0.00),
    "fringe": (0.08, 0.06, 0.15, 0.02, -0.20, 0.04, 0.00, 0.004, 0.0, 0.00),
    "bob": (0.09, 0.09, 0.42, 0.06, -0.32, 0.34, 0.10, 0.006, 0.0, 0.00),
    "long": (0.08, 0.09, 0.95, 0.10, -0.40, 0.40, 0.05, 0.006, 0.0, 0.00),
    "wavy": (0.12, 0.13, 0.85, 0.14, -0.36, 0.32, -0.12, 0.030, 0.5, 0.00),
    "afro": (0.30, 0.28, 0.05, 0.00, -0.36, 0.14, 0.00, 0.018, 1.0, 0.00),
    "bun": (0.05, 0.03, -0.1, 0.00, -0.40, 0.26, 0.00, 0.004, 0.0, 0.19),
}
HATS = ("none", "beanie", "cap", "brimmed", "band")


class Numbers:
    """Random numbers of `count` faces from number `first` on, handed out in order: float32 (n, 1, 1)."""

    def __init__(self, seed: int, first: int, count: int) -> None:
        rows = [np.random.Generator(np.random.Philox(key=(seed, first + i))).random(NUMBERS) for i in range(count)]
        self.columns = iter(np.array(rows, np.float32).reshape(count, NUMBERS).T)

    def between(self, low: float, high: float) -> np.ndarray:
        """Uniform numbers."""
        return (low + (high - low) * next(self.columns))[:, None, None]

    def about(self, middle: float, width: float) -> np.ndarray:
        """Numbers nearer to the middle: a triangle from middle - width to middle + width."""
        return middle + (self.between(-0.5, 0.5) + self.between(-0.5, 0.5)) * width

    def chance(self, share: float) -> np.ndarray:
        """1 for this share of the faces, else 0."""
        return (self.between(0, 1) < share).astype(np.float32)

    def choice(self, weights: tuple[float, ...]) -> np.ndarray:
        """Integers from 0, (n,), as often as the weights say."""
        ends = np.cumsum(np.array(weights)) / sum(weights)
        return np.minimum(np.searchsorted(ends, next(self.columns), side="right"), len(weights) - 1)

    def colour(self, table, spread: float = 0.04, weights: tuple[float, ...] = ()) -> np.ndarray:
        """One of the table's colours, a little lighter, darker or of another tint."""
        chosen = np.array(table, np.float32)[self.choice(weights or (1,) * len(table))][:, None, None] / 255
        tint = np.stack([self.between(-spread, spread) for _ in range(3)], axis=-1)
        return np.clip(chosen + tint, 0, 1)


def traits(seed: int, first: int, count: int) -> SimpleNamespace:
    """What the faces from number `first` on look like. style and hat are indices into STYLES and HATS, (n,)."""
    r = Numbers(seed, first, count)
    t = SimpleNamespace(style=r.choice((3, 9, 11, 9, 10, 10, 13, 11, 9, 8)), hat=r.choice((77, 7, 7, 5, 4)))
    t.x, t.y, t.roll, t.yaw = r.about(0, 0.07), r.about(0.02, 0.05), r.about(0, 0.16), r.about(0, 1)
    t.width, t.height, t.jaw, t.size = r.about(0.44, 0.05), r.about(0.58, 0.05), r.between(0.04, 0.24), r.about(1, 0.08)
    tone = r.between(0, len(SKINS) - 1.001)
    low, part = tone.astype(int)[:, 0, 0], (tone % 1)[..., None]
    skins = np.array(SKINS, np.float32)[:, None, None] / 255
    t.skin = skins[low] * (1 - part) + skins[low + 1] * part + np.stack([r.between(-0.02, 0.02)] * 3, axis=-1)
    t.hair = r.colour(HAIRS, 0.025, (10, 10, 10, 9, 8, 5, 6, 9, 6, 5, 4, 2, 2))
    columns = np.array([*STYLES.values()], np.float32)[t.style].T[..., None, None]
    names = ("top", "side", "back", "flare", "line", "arch", "slant", "wave", "curl", "bun")
    for name, column in zip(names, columns, strict=True):
        setattr(t, name, column * r.between(0.85, 1.15))
    t.slant = t.slant * np.where(r.chance(0.5) > 0, 1, -1)
    t.phase, t.strands = r.between(0, 6.28), r.between(0.5, 1.3)
    t.light, t.high, t.contrast = r.about(0, 1), r.between(-0.7, -0.2), r.between(0.25, 0.5)
    t.warmth, t.vignette = r.about(0, 0.05), r.between(0, 0.25)
    t.apart, t.eye_width, t.eye_height = r.about(0.185, 0.02), r.about(0.105, 0.018), r.about(0.062, 0.018)
    t.gaze, t.iris, t.slope = r.about(0, 0.035), r.colour(EYES, 0.03), r.about(0, 0.12)
    t.wink, t.lashes = r.chance(0.04), r.between(0.3, 1)
    t.brow_height, t.brow_arch, t.brow_tilt = r.about(0.135, 0.025), r.about(0.5, 0.4), r.about(0, 0.22)
    t.brow_thick, t.brow_uneven = r.between(0.016, 0.038), r.about(0, 0.02)
    t.nose, t.nose_length = r.about(0.085, 0.022), r.about(0.2, 0.04)
    t.mouth, t.mouth_width = r.about(0.36, 0.02), r.about(0.15, 0.04)
    t.smile, t.smirk = r.between(-0.3, 1), r.about(0, 0.12)
    t.open, t.lips = r.chance(0.4) * r.between(0.02, 0.075), r.between(0.016, 0.036)
    t.beard = r.choice((66, 8, 9, 6, 11))  # none, stubble, full, goatee, moustache
    t.lipstick = r.chance(0.3) * (t.beard == 0)[:, None, None] * r.between(0.3, 0.9)
    t.blush, t.freckles = r.between(0, 0.3), r.chance(0.12)
    t.glasses, t.dark = r.chance(0.24), r.chance(0.2)
    t.rim, t.rim_size, t.square = r.colour(((30, 28, 32), (96, 56, 34), (150, 40, 44), (196, 168, 96))), r.about(
        0.15, 0.02), r.between(2, 5)  # fmt: skip
    t.clothes, t.trim, t.collar = r.colour(CLOTHES), r.colour(CLOTHES), r.choice((4, 3, 3))  # round, V, high
    t.stripes, t.shoulders, t.earrings = r.chance(0.2), r.about(0.72, 0.1), r.chance(0.18)
    t.wall, t.glow, t.slope_wall = r.colour(WALLS), r.colour(WALLS), r.between(0, 6.28)
    t.lamps = [(r.between(-1, 1), r.between(-1, 0.6), r.between(0.1, 0.35), r.chance(0.3)) for _ in range(3)]
    t.felt, t.ribbon = r.colour(CLOTHES), r.colour(CLOTHES)
    return t
