"""DCGAN generators with random weights: this project's, PyTorch's with the same, and PyTorch's example."""

import numpy as np

from tilewright.models.dcgan import DCGANConfig, DCGANLayer

SMALL = DCGANConfig(
    z_size=6,
    size=2,
    channels=8,
    layers=(
        DCGANLayer(channels=5),  # 4 x 4
        DCGANLayer(channels=7, kernel=4, stride=3, padding=(0, 2)),  # 11 x 11
        DCGANLayer(channels=3, kernel=3, stride=1, padding=(1, 1)),  # 11 x 11
    ),
)


def random_weights(config: DCGANConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 arrays by name; no norm is the identity, and the pixels reach from -1 to 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        if name.endswith("running_var"):
            weights[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        elif len(shape) == 1:
            weights[name] = (name.startswith("norms") and name.endswith(".weight")) + rng.normal(0, 0.2, shape)
        else:
            inputs = shape[0] if len(shape) == 2 else shape[3] * 6
            weights[name] = rng.normal(0, np.sqrt(2 / inputs), shape)
        weights[name] = np.asarray(weights[name], np.float32)
    return weights


def random_noise(config: DCGANConfig, n: int, seed: int = 1) -> np.ndarray:
    """float32 (n, z_size)."""
    return np.random.default_rng(seed).standard_normal((n, config.z_size)).astype(np.float32)


def torch_images(config: DCGANConfig, weights: dict[str, np.ndarray], z: np.ndarray) -> np.ndarray:
    """float32 (n, height, width, channels) by PyTorch's own layers, the norms applied and nothing folded."""
    import torch
    from torch.nn import functional

    w = {name: torch.tensor(array) for name, array in weights.items()}
    x = functional.linear(torch.from_numpy(z), w["proj.weight"].T, w.get("proj.bias"))
    x = x.view(len(z), config.size, config.size, config.channels).permute(0, 3, 1, 2)
    for i, layer in enumerate(config.layers):
        mean, var, gamma, beta = (w[f"norms.{i}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        x = functional.batch_norm(x, mean, var, gamma, beta, eps=config.batch_norm_eps).relu()
        kernel = w[f"convs.{i}.weight"].permute(3, 2, 0, 1)
        x = functional.conv_transpose2d(x, kernel, w.get(f"convs.{i}.bias"), stride=layer.stride)
        before, after = layer.padding
        x = x[:, :, before : x.shape[2] - after, before : x.shape[3] - after]
    return x.tanh().permute(0, 2, 3, 1).contiguous().numpy()


def netg(z_size: int = 100, features: int = 64, channels: int = 3, seed: int = 0):
    """PyTorch's example netG for 64 x 64 pixels, ready to run, its norms away from the identity."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    widths = [features * 8, features * 4, features * 2, features]
    layers = [nn.ConvTranspose2d(z_size, widths[0], 4, 1, 0, bias=False)]
    for before, after in zip(widths, [*widths[1:], channels], strict=True):
        layers += [nn.BatchNorm2d(before), nn.ReLU(True), nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)]

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.main = nn.Sequential(*layers, nn.Tanh())

        def forward(self, z):
            return self.main(z)

    model = Generator().eval()
    with torch.no_grad():
        for layer in model.main:
            if isinstance(layer, nn.ConvTranspose2d):
                layer.weight.normal_(0, (2 / (layer.in_channels * 4)) ** 0.5)
            if isinstance(layer, nn.BatchNorm2d):
                for vector, mean in ((layer.weight, 1), (layer.bias, 0), (layer.running_mean, 0)):
                    vector.normal_(mean, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
    return model


def netg_images(model, z: np.ndarray) -> np.ndarray:
    """float32 (n, height, width, channels)."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(z)[:, :, None, None]).permute(0, 2, 3, 1).contiguous().numpy()
