"""Models in formats that tilewright does not read: what a file or a directory contains, and what to do about it."""

from __future__ import annotations

import os

PICKLES = (".bin", ".pt", ".pth", ".ckpt")  # names of PyTorch's checkpoints
OTHERS = {
    ".gguf": "a GGUF file (llama.cpp)", ".onnx": "an ONNX graph", ".h5": "a TensorFlow checkpoint",
    ".msgpack": "a Flax checkpoint", ".tflite": "a TensorFlow Lite graph", ".npz": "a NumPy archive",
    ".mlmodel": "a Core ML model",
}  # fmt: skip
REMEDY = "get the same model as config.json and model.safetensors, which transformers writes with save_pretrained()"


def is_pickle(path: str, start: bytes) -> bool:
    """True for a file that PyTorch saved, by its name and its first bytes: an archive, or a pickle alone."""
    return path.lower().endswith(PICKLES) and (start.startswith(b"PK\x03\x04") or start[:1] == b"\x80")


def foreign_format(path: str, start: bytes) -> tuple[str, str] | None:
    """(what a file is that was given as a model, what to do); None for an unknown format. start: its first bytes."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".safetensors":
        return "is the weights of a model without its configuration", (
            "give the directory that holds it and config.json; `tilewright convert` makes one of a state dict"
        )
    if is_pickle(path, start):
        what = "is a PyTorch checkpoint (a pickle), which is not read as a model"
        return what, f"convert it first: tilewright convert {path} NEW_DIRECTORY"
    if start.startswith(b"GGUF"):
        ending = ".gguf"
    if ending in OTHERS:
        return f"is {OTHERS[ending]}, which is not read", REMEDY
    return None


def foreign_weights(path: str) -> tuple[str, str] | None:
    """(what a directory has instead of model.safetensors, what to do); None if it is no directory."""
    if not os.path.isdir(path):
        return None
    names = sorted(os.listdir(path))
    pickles = [name for name in names if name.lower().endswith(PICKLES) and name != "token_table.bin"]
    pickles.sort(key=lambda name: not name.startswith("pytorch_model"))
    if pickles and pickles[0].startswith("pytorch_model-"):
        what = f"holds no model.safetensors, but {len(pickles)} parts of a PyTorch checkpoint (pickles)"
        return what, REMEDY
    if pickles:
        what = f"holds no model.safetensors, but {pickles[0]}, a PyTorch checkpoint (a pickle)"
        return what, f"convert it first: tilewright convert {os.path.join(path, pickles[0])} NEW_DIRECTORY"
    tensors = [name for name in names if name.endswith(".safetensors")]
    if tensors:
        what = f"holds no model.safetensors and no model.safetensors.index.json, but {', '.join(tensors[:3])}"
        return what, "rename one file of all weights to model.safetensors, or get the index file of several files"
    for name in names:
        if (ending := os.path.splitext(name)[1].lower()) in OTHERS:
            return f"holds no model.safetensors, but {name}, {OTHERS[ending]}, which is not read", REMEDY
    return "holds no weights: there is no model.safetensors", "download the model again, with its weights"
