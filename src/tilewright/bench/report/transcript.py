"""What `tilewright demo --save` printed and drew, as README.md shows it: the verse and the faces."""

from pathlib import Path

FOLDER, TEXT = Path("results/demo"), "demo.txt"  # of a checkout
PICTURE, WORDS = "faces.png", "faces that the model `portraits` drew"
COMMAND = "tilewright demo"
LINES, COLUMNS = 4, 120  # at most, of the output; blank lines are left out
MISSING = "Not run yet: `tilewright demo --save` does."


def transcript(root: Path) -> str:
    """The picture, and the command with the first lines of its output in a block, for a README in `root`."""
    saved = root / FOLDER
    if not (saved / TEXT).is_file():
        return MISSING
    lines = [line for line in (saved / TEXT).read_text(encoding="utf-8").splitlines() if line.strip()]
    shown = [line[:COLUMNS] for line in lines[:LINES]]
    block = "\n".join(["```", f"$ {COMMAND}", *shown, *["..."] * (len(lines) > len(shown)), "```"])
    picture = [f"![{WORDS}]({FOLDER / PICTURE})"] if (saved / PICTURE).is_file() else []
    return "\n\n".join([*picture, block])
