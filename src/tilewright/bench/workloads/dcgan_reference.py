"""A DCGAN generator in float64, directly from the formulas: norms are applied as layers, and each tap scatters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.models.dcgan import DCGANConfig


def reference_images(config: DCGANConfig, weights: Mapping[str, np.ndarray], z: np.ndarray) -> np.ndarray:
    """float64 images (n, height, width, channels) of noise (n, z_size), in plain NumPy."""
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    x = np.asarray(z, np.float64) @ w["proj.weight"] + w.get("proj.bias", 0)
    x = x.reshape(len(z), config.size, config.size, config.channels)
    for i, layer in enumerate(config.layers):
        beta, gamma, mean, var = (w[f"norms.{i}.{name}"] for name in ("bias", "weight", "running_mean", "running_var"))
        x = np.maximum((x - mean) / np.sqrt(var + config.batch_norm_eps) * gamma + beta, 0)
        n, H, W, _ = x.shape
        s, K, (before, after) = layer.stride, layer.kernel, layer.padding
        full = np.zeros((n, (H - 1) * s + K, (W - 1) * s + K, layer.channels))
        for a in range(K):
            for b in range(K):
                taps = x @ w[f"convs.{i}.weight"][a, b].T
                full[:, a : a + (H - 1) * s + 1 : s, b : b + (W - 1) * s + 1 : s] += taps
        x = full[:, before : full.shape[1] - after, before : full.shape[2] - after] + w.get(f"convs.{i}.bias", 0)
    return np.tanh(x)
