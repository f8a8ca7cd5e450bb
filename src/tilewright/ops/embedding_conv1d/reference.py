"""What embedding_conv1d computes, in NumPy float64: TextCNN's first layer, from token ids to pooled features."""

import numpy as np


def embedding_conv1d(ids, table, weights, biases):
    """Embedding, a convolution per branch, ReLU, maximum over positions; branches side by side.

    ids (B, L); table (V, C); weights: per branch (O, C, K); biases: per branch (O,) -> (B, branches * O).
    """
    x = np.asarray(np.asarray(table)[np.asarray(ids)], np.float64)  # (B, L, C)
    features = []
    for weight, bias in zip(weights, biases, strict=True):
        O, _, K = weight.shape
        positions = x.shape[1] - K + 1
        y = np.zeros((len(x), positions, O))
        for tap in range(K):
            window = x[:, tap : tap + positions].reshape(-1, x.shape[2])  # one product for the whole batch
            y += (window @ np.asarray(weight[:, :, tap], np.float64).T).reshape(y.shape)
        features.append(np.maximum(y + np.asarray(bias, np.float64), 0).max(axis=1))
    return np.concatenate(features, axis=1)
