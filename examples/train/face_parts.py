"""The parts of drawn faces: shapes with soft edges painted over each other, from the wall behind to the hat.

x goes to the right and y downwards, both from -1 to 1. A head turns, tilts and shifts by little; u and v are its own
coordinates. Every array is (n, 64, 64). Distances to ellipses are divided by their gradient's length, after Quilez,
"Ellipsoid - SDF".
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

SIZE = 64  # pixels a side
PIXEL = 2 / SIZE


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
