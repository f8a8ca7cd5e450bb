"""A process that reads a PyTorch checkpoint with weights_only and writes its tensors as safetensors.

It is run by its path, and imports nothing of tilewright. Its arguments are the checkpoint, the file to write, and the
checkpoint's bytes. An error ends it, and the parent reads the last line of its traceback.
"""

import sys
from typing import Any

NESTED = ("state_dict", "model_state_dict", "netG", "generator", "G", "model")  # keys of training checkpoints


def tensors_of(value: Any) -> dict[str, Any]:
    """The tensors of a state dict, or of the one inside a training checkpoint."""
    import torch

    if isinstance(value, dict):
        found = {name: x for name, x in value.items() if isinstance(name, str) and isinstance(x, torch.Tensor)}
        if found:
            return found
        for name in NESTED:
            if isinstance(value.get(name), dict):
                return tensors_of(value[name])
    keys = f" with keys {', '.join(map(str, list(value)[:5]))}" if isinstance(value, dict) else ""
    raise ValueError(f"a {type(value).__name__}{keys} is no state dict")


def main(source: str, destination: str, size: int) -> None:
    """Convert a checkpoint. size: bytes of the source; tensors that claim to be larger are refused."""
    import torch
    from safetensors.torch import save_file

    tensors = tensors_of(torch.load(source, map_location="cpu", weights_only=True))
    sizes = [(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in tensors.values()]
    if any(own > stored for own, stored in sizes) or sum(own for own, _ in sizes) > 2 * size:  # 2: for tied ones
        raise ValueError("its tensors take more bytes than the file has")
    save_file({name: x.detach().contiguous().clone() for name, x in tensors.items()}, destination)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
