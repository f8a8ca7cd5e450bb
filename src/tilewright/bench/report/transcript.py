"""What `tilewright demo --save` printed and drew, as README.md shows it."""

from pathlib import Path

FOLDER, TEXT = Path("results/demo"), "demo.txt"  # of a checkout
PICTURES = {"faces.png": "faces that portraits drew", "volume.png": "a plane of a volume, noisy and smoothed"}
COMMAND = "tilewright demo"
MISSING = "Not run yet: `tilewright demo --save` does."


def transcript(root: Path) -> str:
    """The command and its output in a block, and the pictures that it names, for a README in `root`."""
    kept = root / FOLDER
    if not (kept / TEXT).is_file():
        return MISSING
    text = (kept / TEXT).read_text(encoding="utf-8").rstrip()
    block = f"```\n$ {COMMAND}\n{text}\n```"
    pictures = [f"![{what}]({FOLDER / name})" for name, what in PICTURES.items() if (kept / name).is_file()]
    return "\n\n".join([block, *pictures])
