"""Faces drawn by a program: 64 x 64 pixels, shapes with soft edges painted over each other from back to front.

    python examples/train/faces.py --seed 1 --count 64 -o faces.png

A face depends on the seed and its number alone: its traits are numbers from a counter-based generator. Lengths are in
half pictures: x to the right and y downwards, both from -1 to 1. A head turns, tilts and shifts by little; u and v are
its own coordinates. Every array is (n, 64, 64), a trait is (n, 1, 1), a colour (n, 1, 1, 3) with values from 0 to 1.
Distances to ellipses are divided by their gradient's length, after Quilez, "Ellipsoid - SDF".
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np

SIZE, CHUNK = 64, 32  # pixels a side; faces painted together: an array of them, 512 KiB, stays in the cache
PIXEL = 2 / SIZE
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


def cover(distance: np.ndarray, soft: np.ndarray | float = PIXEL) -> np.ndarray:
    """How much of a pixel lies inside a shape, 0 to 1, from the distance to its edge (negative inside)."""
    return np.clip(0.5 - distance / soft, 0, 1)


def ellipse(u, v, a, b) -> np.ndarray:
    """The distance to an ellipse of half axes a, b around the origin."""
    return superellipse(u, v, a, b, 2)


def superellipse(u, v, a, b, power) -> np.ndarray:
    """The same with |u / a| ** power + |v / b| ** power = 1 as its edge."""
    p, q = np.abs(u / a) + 1e-6, np.abs(v / b) + 1e-6
    radius = (p**power + q**power) ** (1 / power)
    slope = np.hypot((p / radius) ** (power - 1) / a, (q / radius) ** (power - 1) / b)
    return (radius - 1) / slope


def smooth(x, low, high) -> np.ndarray:
    """0 up to low, 1 from high, a cubic between."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def blob(u, v, width, height) -> np.ndarray:
    """A soft spot: 1 in the middle."""
    return np.exp(-((u / width) ** 2) - (v / height) ** 2)


class Canvas:
    """Pictures (n, 64, 64, 3) of which a part is painted over at a time, in the coordinates of the heads."""

    def __init__(self, t: SimpleNamespace) -> None:
        axis = (np.arange(SIZE, dtype=np.float32) + 0.5) * PIXEL - 1
        self.t, self.x, self.y = t, axis[None, None, :], axis[None, :, None]
        cos, sin = np.cos(t.roll) / t.size, np.sin(t.roll) / t.size
        self.u = (self.x - t.x) * cos + (self.y - t.y) * sin
        self.v = (self.y - t.y) * cos - (self.x - t.x) * sin
        self.rgb = np.zeros((len(t.x), SIZE, SIZE, 3), np.float32)

    def paint(self, colour: np.ndarray, share: np.ndarray) -> None:
        """Mixes this share, 0 to 1, of the colour into the pixels."""
        self.rgb += share[..., None] * (colour - self.rgb)

    def shade(self, factor: np.ndarray) -> None:
        """Multiplies; a shadow (below 1) takes more of the blue than of the red, as in skin."""
        self.rgb *= np.stack([factor, factor**1.12, factor**1.22], axis=-1)


def background(c: Canvas) -> None:
    """A wall in two colours with lamps out of focus, and light from one side."""
    t = c.t
    along = c.x * np.cos(t.slope_wall) + c.y * np.sin(t.slope_wall)
    c.paint(t.wall, np.ones_like(c.u))
    c.paint(t.glow, smooth(along, -1.2, 1.2) * 0.8)
    for x, y, radius, there in t.lamps:
        c.paint(t.glow * 0.5 + 0.5, cover(np.hypot(c.x - x, c.y - y) - radius, 0.15) * there * 0.35)
    c.rgb *= (1 + 0.12 * t.light * c.x)[..., None]


def lit(c: Canvas, a, b) -> np.ndarray:
    """Light on an ellipsoid of half axes a, b: about 1, less on the far side."""
    t = c.t
    p, q = np.clip(c.u / a, -1, 1), np.clip(c.v / b, -1, 1)
    depth = np.sqrt(np.maximum(1 - 0.85 * (p * p + q * q), 0.05))
    return 1 - t.contrast + t.contrast * (0.75 * t.light * p + t.high * q + 1.15 * depth)


def hair_texture(c: Canvas) -> np.ndarray:
    """Light and dark of strands that fall from the crown, of curls, and a band of gloss: about 1."""
    t = c.t
    angle = np.arctan2(c.u - t.slant * 0.6, c.v + 0.95)
    strands = np.sin(angle * 34 + t.phase + 2 * np.sin(c.v * 5 + t.phase)) * 0.09 * t.strands * (1 - 0.6 * t.curl)
    wobble = np.sin(c.v * 9 + t.phase)
    curls = np.sin(c.u * 26 + 2 * wobble + t.phase) * np.sin(c.v * 28 + np.sin(c.u * 11) * 2) * 0.16 * t.curl
    radius = np.hypot(c.u, (c.v + 0.1) * 0.85)
    gloss = np.exp(-(((radius - 0.42) / 0.07) ** 2)) * (c.v < 0.1) * np.clip(0.6 + t.light * c.u * 2, 0, 1.2)
    return (1 + strands + curls + 0.3 * gloss * (1 - t.curl)) * lit(c, t.width + t.side + 0.1, 0.9)


def head_shape(c: Canvas, wider=0.0, higher=0.0) -> np.ndarray:
    """The distance to the head's outline, or to one beyond it."""
    t = c.t
    narrow = 1 - t.jaw * np.clip(c.v / t.height, 0, 1) ** 2
    return ellipse(c.u / narrow, c.v, t.width + wider, t.height + higher)


def hair_shape(c: Canvas) -> np.ndarray:
    """The distance to all of the hair, what the face hides too."""
    t = c.t
    hat = (t.hat[:, None, None] > 0) * (t.hat[:, None, None] < 4)
    v = c.v + 0.06
    cap = ellipse(c.u, v, t.width + t.side, t.height + t.top * np.where(hat, 0.3, 1) - 0.05)
    middle = (t.back - 0.25) / 2
    wide, high = t.width + t.side + t.flare * smooth(c.v, 0, 1), np.abs(t.back - middle) + 0.05
    fall = superellipse(c.u, c.v - middle, wide, high, 4)
    fall = np.where(t.back > 0, fall, 1.0)
    short = np.where(t.back > 0.1, -1.0, c.v - 0.12 - 0.5 * np.maximum(t.side - 0.1, 0))  # nothing below the ears
    bun = np.where((t.bun > 0) & ~hat, np.hypot(c.u + t.yaw * 0.05, c.v + t.height + 0.1) - t.bun, 1.0)
    edge = t.wave * np.sin(np.arctan2(c.u, v) * 17 + t.phase) + 0.5 * t.wave * np.sin(c.v * 21 + t.phase)
    return np.minimum(np.minimum(np.maximum(cap, short), fall), bun) + edge


def body(c: Canvas) -> None:
    """Neck, shoulders and clothes, which do not turn with the head."""
    t = c.t
    x, y = c.x - t.x * 0.8, c.y - t.y
    light = 1 - 0.5 * t.contrast + 0.4 * t.contrast * t.light * x - 0.25 * smooth(-y, -0.75, -0.4)
    neck = superellipse(x, y - 0.6, 0.2 + 0.2 * (t.width - 0.4), 0.5, 3)
    c.paint(t.skin * light[..., None], cover(neck))
    chest = ellipse(x, y - 1.2, t.shoulders + 0.06, 0.5)
    c.paint(t.skin * light[..., None], cover(chest))
    collar = t.collar[:, None, None]
    opening = np.where(collar == 1, (np.abs(x) * 1.9 + (y - 1.02)) * 0.5, ellipse(x, y - 0.66, 0.27, 0.17))
    opening = np.where(collar == 2, y - 0.62, opening)
    high = superellipse(x, y - 0.9, 0.25, 0.28, 3)
    cloth = np.maximum(np.where(collar == 2, np.minimum(chest, high), chest), -opening)
    pattern = t.stripes * cover(np.abs((y * 4.5) % 1 - 0.5) - 0.25, 0.2)
    colour = t.clothes * (1 - pattern[..., None]) + t.trim * pattern[..., None]
    folds = 0.9 + 0.25 * t.light * x + 0.04 * np.sin(x * 9 + y * 7 + t.phase)
    c.paint(colour * folds[..., None], cover(cloth))
    c.paint(t.trim * 0.9, cover(np.abs(cloth + 0.02) - 0.02) * (1 - t.stripes) * 0.6)


def skull(c: Canvas) -> None:
    """Ears, then the face itself: shaded skin, cheeks, freckles, the shadow of the hair."""
    t = c.t
    for side in (-1, 1):
        u, v = c.u - side * (t.width - 0.005) + t.yaw * 0.03, c.v - 0.06
        ear = ellipse(u, v, 0.075, 0.12)
        c.paint(t.skin * (0.86 + 0.12 * side * t.light)[..., None], cover(ear))
        c.paint(t.skin * 0.66, cover(ellipse(u + side * 0.01, v, 0.035, 0.07), 0.06) * 0.7)
        c.paint(t.rim * 0.3 + 0.7 * np.array([0.95, 0.82, 0.4]), cover(np.hypot(u, v - 0.15) - 0.032) * t.earrings)
    face = cover(head_shape(c))
    shading = lit(c, t.width, t.height)
    shading = np.maximum(shading, 0)
    skin = t.skin * np.stack([shading, shading**1.12, shading**1.25], axis=-1)
    c.paint(skin, face)
    red = np.clip(t.skin * np.array([1.06, 0.72, 0.7], np.float32), 0, 1)
    for side in (-1, 1):
        u, v = c.u - side * 0.25 - t.yaw * 0.05, c.v - 0.2
        c.paint(red, blob(u, v, 0.12, 0.1) * t.blush * face)
        dots = np.sin(c.u * 61 + t.phase * 3) * np.sin(c.v * 53 + c.u * 31 + t.phase)
        c.paint(t.skin * 0.72, blob(u, v, 0.16, 0.09) * (dots > 0.45) * t.freckles * 0.6)
    below = c.v - hairline(c)
    there = (t.line > -0.6) * 0.22
    c.rgb *= (1 - there * face * np.exp(-((np.clip(below, 0, 1) / 0.07) ** 2)))[..., None]


def hairline(c: Canvas) -> np.ndarray:
    """Where the forehead begins: v over u."""
    t = c.t
    u = (c.u - t.yaw * 0.05) / t.width
    fringe = 0.012 * np.sin(u * 19 + t.phase) * (1 + 20 * t.wave)
    return t.line + t.arch * (u - t.slant) ** 2 + t.slant * u * 0.8 + fringe + 0.1 * (t.height - 0.58)


def eyes(c: Canvas) -> None:
    """Lens-shaped eyes with iris, pupil, a spark of light, lids, lashes and brows."""
    t = c.t
    for side in (-1, 1):
        turn = 1 - 0.1 * t.yaw * side
        u = (c.u - side * t.apart - t.yaw * 0.06) / turn
        v = c.v + 0.03 - side * t.slope * u * 0.6
        height = t.eye_height * (1 - 0.85 * t.wink * (side > 0))
        bow = 1 - (u / t.eye_width) ** 2
        lens = np.maximum(-v - height * bow, v - 0.75 * height * bow)
        socket = np.clip(0.28 * blob(u, v + 0.02, 0.15, 0.1), 0, 1)
        c.shade(1 - socket * 0.6)
        white = cover(lens) * (bow > 0)
        c.paint(np.array([0.95, 0.94, 0.92], np.float32) * (0.88 + 0.1 * smooth(v, -0.06, 0.02))[..., None], white)
        iris = np.hypot(u - t.gaze, v)
        c.paint(t.iris * 0.55, white * cover(iris - 0.06))
        c.paint(np.clip(t.iris * 1.25, 0, 1), white * cover(iris - 0.045) * 0.8)
        c.paint(np.float32(0.06) * np.ones(3, np.float32), white * cover(iris - 0.026))
        c.paint(
            np.ones(3, np.float32), white * cover(np.hypot(u - t.gaze - 0.022 * np.sign(t.light), v + 0.024) - 0.017)
        )
        lash = np.abs(v + height * bow) - 0.011 - 0.008 * t.lashes
        c.paint(t.hair * 0.3, cover(lash) * cover(np.abs(u) - t.eye_width - 0.01 * t.lashes) * 0.9)
        c.paint(t.skin * 0.62, cover(np.abs(v - 0.75 * height * bow) - 0.004) * (bow > 0) * 0.5)
        brow_u = u + side * 0.0
        rise = t.brow_height + side * t.brow_uneven - t.brow_arch * 1.6 * brow_u**2 + side * t.brow_tilt * brow_u
        thick = t.brow_thick * (1 - 0.45 * side * brow_u / 0.14)
        brow = np.maximum(np.abs(c.v + 0.03 + rise) - thick, np.abs(brow_u) - 0.135)
        c.paint(t.hair * 0.62 + t.skin * 0.08, cover(brow, PIXEL * 1.3) * 0.85)


def nose(c: Canvas) -> None:
    """A bridge that takes light on one side, a tip, nostrils and the shadow below."""
    t = c.t
    u, v = c.u - t.yaw * 0.1 * smooth(c.v, -0.1, 0.25), c.v
    along = smooth(v, -0.12, 0.02) * (1 - smooth(v, t.nose_length - 0.06, t.nose_length + 0.03))
    away = np.where(t.light > 0, -1, 1)
    c.shade(1 - 0.2 * along * blob(u - away * 0.055, 0, 0.04, 1) * (0.4 + np.abs(t.light)))
    c.paint(np.clip(t.skin * 1.18 + 0.05, 0, 1), along * blob(u + away * 0.012, 0, 0.025, 1) * 0.4)
    tip = v - t.nose_length
    c.paint(np.clip(t.skin * 1.15 + 0.06, 0, 1), blob(u + away * 0.015, tip + 0.02, 0.035, 0.03) * 0.55)
    c.shade(1 - 0.34 * blob(u, tip - 0.05, t.nose, 0.025))
    for side in (-1, 1):
        c.shade(1 - 0.5 * cover(ellipse(u - side * t.nose * 0.5, tip - 0.038, 0.026, 0.016), 0.04))
        c.shade(1 - 0.22 * blob(u - side * t.nose, tip - 0.005, 0.018, 0.04))


def beard(c: Canvas) -> None:
    """Stubble, a full beard, a goatee or a moustache, of the hair's colour."""
    t = c.t
    kind, u, v = t.beard[:, None, None], c.u - t.yaw * 0.06, c.v
    face = cover(head_shape(c, 0.01, 0.03))
    jaw = (
        face * smooth(v + np.abs(u) * 0.55, 0.3, 0.42) * (1 - cover(ellipse(u, v - t.mouth, t.mouth_width, 0.05), 0.05))
    )
    chin = face * cover(ellipse(u, v - 0.52, 0.14, 0.13), 0.06)
    lip = cover(np.abs(v - t.mouth + 0.075 - 0.5 * u**2) - 0.03 - 0.02 * (1 - np.abs(u) / 0.2), 0.05) * (
        np.abs(u) < 0.18
    )
    hairy = 0.85 + 0.15 * np.sin(u * 60 + 5 * np.sin(v * 23 + t.phase)) * np.sin(v * 40)
    shares = [np.maximum(jaw, lip) * 0.3, np.maximum(jaw, lip) * 0.9, np.maximum(chin, lip) * 0.85, lip * 0.9]
    share = np.select([kind == 1, kind == 2, kind == 3, kind == 4], shares, 0.0)
    c.paint(t.hair * (hairy * 0.85 * lit(c, t.width, t.height + 0.1))[..., None], share)


def mouth(c: Canvas) -> None:
    """Lips along a smile, closed, or open over teeth."""
    t = c.t
    u = c.u - t.yaw * 0.07
    w = t.mouth_width * (1 + 0.15 * t.smile)
    bow = 1 - (u / w) ** 2
    inside = cover(np.abs(u) - w)
    v = c.v - t.mouth - t.smile * 0.05 * bow - t.smirk * u * 0.5 + 0.02 * t.smile
    gap = t.open * np.clip(bow, 0, 1)
    lips = np.clip(t.skin * np.array([0.88, 0.62, 0.6], np.float32), 0, 1)
    lips = lips + t.lipstick[..., None] * (np.array([0.78, 0.16, 0.24], np.float32) - lips)
    cupid = t.lips * np.clip(bow, 0, 1) * (0.75 - 0.25 * blob(u, 0, 0.025, 1))
    upper, lower = -v - cupid, v - gap - 1.25 * t.lips * np.clip(bow, 0, 1)
    c.paint(lips * 0.94, cover(np.maximum(upper, lower)) * inside)
    c.paint(np.clip(lips * 1.25, 0, 1), blob(u, v - gap - 0.6 * t.lips, 0.06, 0.012) * inside * 0.5)
    within = cover(np.maximum(-v, v - gap)) * inside * (t.open > 0)
    c.paint(np.array([0.3, 0.09, 0.1], np.float32), within)
    c.paint(np.array([0.95, 0.93, 0.9], np.float32), within * cover(v - 0.55 * gap))
    c.paint(lips * 0.42, cover(np.abs(v - gap * 0.0) - 0.006) * inside * np.where(t.open > 0, 0.35, 0.9))
    for side in (-1, 1):
        c.shade(1 - 0.22 * blob(u - side * (w + 0.012), v + 0.0, 0.025, 0.03))
    c.shade(1 - 0.12 * blob(u, v - gap - t.lips * 1.25 - 0.045, 0.09, 0.025))


def front_hair(c: Canvas) -> None:
    """What grows over the forehead, and falls beside the face."""
    t = c.t
    whole = hair_shape(c)
    lock = t.width * (0.93 - 0.1 * smooth(c.v, 0.3, 0.6)) + 0.02 * np.sin(c.v * 11 + t.phase) * (t.wave > 0.01)
    beside = np.where(t.back > 0.3, lock - np.abs(c.u - t.yaw * 0.03), 1.0)
    sideburn = np.where(t.back <= 0.3, np.maximum(t.width * 0.92 - np.abs(c.u), c.v - 0.02), 1.0)
    front = np.maximum(whole, np.minimum(np.minimum(c.v - hairline(c), beside), sideburn))
    there = t.line > -0.6
    c.paint(t.hair * hair_texture(c)[..., None], cover(front) * there)


def glasses(c: Canvas) -> None:
    """Two rims from round to square with a bridge and temples; some lenses are dark."""
    t = c.t
    v = c.v + 0.02
    for side in (-1, 1):
        u = c.u - side * (t.apart + 0.005) - t.yaw * 0.06
        lens = superellipse(u, v, t.rim_size, t.rim_size * 0.8, t.square)
        tint = 0.12 + 0.76 * t.dark
        glass = np.where(t.dark[..., None] > 0, t.rim * 0.35 + 0.05, np.float32(0.85))
        c.paint(glass, cover(lens) * t.glasses * tint * (1 - 0.25 * t.dark * smooth(v, -0.1, 0.12)))
        c.paint(np.ones(3, np.float32), cover(lens) * blob(u + v + 0.03, 0, 0.035, 1) * t.glasses * 0.3)
        c.paint(t.rim, cover(np.abs(lens) - 0.016) * t.glasses)
        temple = np.maximum(np.abs(v + 0.03) - 0.014, np.maximum(t.rim_size - side * u, np.abs(c.u) - t.width - 0.02))
        c.paint(t.rim * 0.9, cover(temple) * t.glasses)
    bridge = np.maximum(np.abs(v + 0.02) - 0.014, np.abs(c.u - t.yaw * 0.06) - (t.apart - t.rim_size + 0.015))
    c.paint(t.rim, cover(bridge) * t.glasses)


def hat(c: Canvas) -> None:
    """A beanie with a cuff, a cap with a visor, a hat with a brim, or a band in the hair."""
    t = c.t
    kind = t.hat[:, None, None]
    wide, u = t.width + 0.05 + np.minimum(t.side, 0.08), c.u - t.yaw * 0.03
    folds = lit(c, wide, 0.9)[..., None]
    dome = np.maximum(ellipse(u, c.v + 0.22, wide, 0.52), c.v + 0.26)
    knit = 1 + 0.07 * np.sin(u * 45) * (kind == 1)
    c.paint(t.felt * folds * knit[..., None], cover(dome) * ((kind >= 1) & (kind <= 3)))
    cuff = superellipse(u, c.v + 0.33, wide + 0.025, 0.095, 5)
    c.paint(t.ribbon * folds * (1 + 0.1 * np.sin(u * 40))[..., None], cover(cuff) * (kind == 1))
    c.paint(t.ribbon * (0.9 - 0.4 * (c.v + 0.8))[..., None], cover(np.hypot(u, c.v + 0.78) - 0.1, 0.05) * (kind == 1))
    visor = ellipse(u - t.yaw * 0.1, c.v + 0.27 - 0.25 * u**2, wide * 0.92, 0.085)
    c.paint(t.ribbon * (0.85 - 0.8 * (c.v + 0.27))[..., None], cover(visor) * (kind == 2))
    c.paint(t.ribbon, cover(np.maximum(np.abs(c.v + 0.34) - 0.05, dome)) * (kind == 3))
    brim = ellipse(u, c.v + 0.27 - 0.12 * u**2, wide + 0.27, 0.085)
    c.paint(t.felt * 0.92 * folds, cover(brim) * (kind == 3))
    shadow = np.exp(-((np.clip(c.v + 0.2, 0, 1) / 0.09) ** 2)) * cover(head_shape(c)) * (c.v > -0.22)
    c.rgb *= (1 - 0.3 * shadow * ((kind == 2) | (kind == 3)))[..., None]
    band = np.maximum(np.abs(c.v + 0.43 - 0.35 * u**2) - 0.04, hair_shape(c) - 0.01)
    c.paint(t.ribbon * folds, cover(band) * (kind == 4))


def paint(t: SimpleNamespace) -> np.ndarray:
    """The faces with these traits: uint8 (n, 64, 64, 3)."""
    c = Canvas(t)
    background(c)
    behind = hair_shape(c)
    c.paint(t.hair * (0.72 * hair_texture(c))[..., None], cover(behind) * (t.line > -0.6))
    for part in (body, skull, eyes, nose, beard, mouth, front_hair, glasses, hat):
        part(c)
    c.rgb *= (1 - t.vignette * smooth(np.hypot(c.x, c.y), 0.6, 1.5))[..., None]
    c.rgb *= np.concatenate([1 + t.warmth, np.ones_like(t.warmth), 1 - t.warmth], axis=2)[:, :, None]
    return (np.clip(c.rgb, 0, 1) * 255 + 0.5).astype(np.uint8)


def draw(seed: int, first: int, count: int) -> np.ndarray:
    """The faces number `first` to `first + count - 1` of a seed: uint8 (count, 64, 64, 3)."""
    starts = range(first, first + count, CHUNK)
    chunks = [paint(traits(seed, at, min(CHUNK, first + count - at))) for at in starts]
    return np.concatenate(chunks) if chunks else np.zeros((0, SIZE, SIZE, 3), np.uint8)


def draw_many(seed: int, first: int, count: int, processes: int = 1) -> np.ndarray:
    """The same faces, drawn by some processes."""
    if processes < 2:
        return draw(seed, first, count)
    step = 16 * CHUNK
    starts = list(range(first, first + count, step))
    counts = [min(step, first + count - at) for at in starts]
    with ProcessPoolExecutor(processes) as pool:
        return np.concatenate(list(pool.map(partial(draw, seed), starts, counts)))


def grid(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, height, width, 3) in rows of `columns`, as many rows as get full: one picture."""
    rows = len(images) // columns
    tiles = images[: rows * columns].reshape(rows, columns, *images.shape[1:])
    return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * images.shape[1], -1, images.shape[3])


def main() -> None:
    """Draws a grid of faces into a picture."""
    parser = argparse.ArgumentParser(description="Draw faces, 16 in a row, into a picture.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("-o", "--output", default="faces.png")
    options = parser.parse_args()
    from PIL import Image

    Image.fromarray(grid(draw(options.seed, options.first, options.count), 16)).save(options.output)


if __name__ == "__main__":
    main()
