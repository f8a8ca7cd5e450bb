"""conv3d in NumPy float64: a cross-correlation (the kernel is not flipped) of volumes with a border."""

import numpy as np

PAD = {"reflect": "symmetric", "constant": "constant", "nearest": "edge", "mirror": "reflect", "wrap": "wrap"}


def conv3d(x, weights, mode="constant", cval=0.0, origin=0):
    """x (D, H, W), weights (KD, KH, KW) or factors (wz, wy, wx) -> (D, H, W) in float64.

    With channels: x (C, D, H, W), weights (O, C, KD, KH, KW) -> (O, D, H, W).

    Mode "valid" pads nothing: (D - KD + 1, H - KH + 1, W - KW + 1).
    """
    if isinstance(weights, tuple):
        return separable(x, weights, mode, cval, origin)
    weights = np.asarray(weights, np.float64)
    if weights.ndim == 3:
        return conv3d(x[None], weights[None, None], mode, cval, origin)[0]
    x = padded(x, weights.shape[2:], mode, cval, origin)
    D, H, W = (n - K + 1 for n, K in zip(x.shape[1:], weights.shape[2:], strict=True))
    out = np.zeros((len(weights), D, H, W))
    with np.errstate(invalid="ignore", over="ignore"):
        for o, c, a, b, t in np.ndindex(weights.shape):
            for z in range(D):  # one plane at a time stays in cache
                out[o, z] += weights[o, c, a, b, t] * x[c, z + a, b : b + H, t : t + W]
    return out


def separable(x, factors, mode, cval, origin):
    """As `conv3d`, one axis at a time. The volume is padded first, for the whole kernel."""
    x = padded(np.asarray(x)[None], [len(w) for w in factors], mode, cval, origin)[0]
    (D, H, W) = (n - len(w) + 1 for n, w in zip(x.shape, factors, strict=True))
    wz, wy, wx = (np.asarray(w, np.float64) for w in factors)
    out = np.empty((D, H, W))
    for z in range(D):
        plane = sum(w * x[z + a] for a, w in enumerate(wz))
        plane = sum(w * plane[b : b + H] for b, w in enumerate(wy))
        out[z] = sum(w * plane[:, t : t + W] for t, w in enumerate(wx))
    return out


def padded(x, sizes, mode, cval, origin):
    """x (C, D, H, W) as float64 with the border that windows of these sizes read, as in scipy.ndimage."""
    x = np.asarray(x, np.float64)
    if mode == "valid":
        return x
    origins = (origin,) * 3 if np.ndim(origin) == 0 else origin
    before = [K // 2 + at for K, at in zip(sizes, origins, strict=True)]
    around = [(0, 0), *((first, K - 1 - first) for first, K in zip(before, sizes, strict=True))]
    return np.pad(x, around, PAD[mode], **({"constant_values": cval} if mode == "constant" else {}))
