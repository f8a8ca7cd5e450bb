"""The packages of the libraries that are timed beside tilewright, with their versions."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

PACKAGES = {  # the first word of a row's name, in small letters -> packages; the first that is installed counts
    **dict.fromkeys(("pytorch", "torch", "mkl", "onednn", "cublas", "cudnn"), ("torch",)),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "opencv": ("opencv-python-headless", "opencv-python"),
    **{name: (name,) for name in ("ctranslate2", "halide", "lm-eval", "openvino", "scipy", "transformers")},
}


def version_of(rung: str) -> str:
    """The package of a peer by the name of its row, and its version: "torch 2.9.1" for "MKL". Empty if unknown."""
    for package in PACKAGES.get(re.split(r"[ ,]", rung.lower())[0], ()):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return ""


def versions_note(libraries: Iterable[str]) -> Iterator[str]:
    """One sentence with the versions of the peers. libraries: of all rows; "" if a row has none, as a rung's."""
    if found := sorted(set(libraries) - {""}):
        yield f"Versions: {', '.join(found)}."
