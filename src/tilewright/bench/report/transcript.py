"""What `tilewright demo --save` printed and drew, as README.md shows it: the verse and the faces."""

from pathlib import Path

FOLDER, TEXT = Path("results/demo"), "demo.txt"  # of a checkout
PICTURE, WORDS = "faces.png", "faces that the model `portraits` drew"
COMMAND = "tilewright demo"
LINES, COLUMNS = 12, 120  # at most, of the block; docs/ shows all of it
MISSING = "Not run yet: `tilewright demo --save` does."


def transcript(root: Path) -> str:
    """The picture, and the command with the first lines of its output in a block, for a README in `root`."""
    saved = root / FOLDER
    if not (saved / TEXT).is_file():
        return MISSING
    lines = (saved / TEXT).read_text(encoding="utf-8").rstrip().splitlines()
    shown = [line[:COLUMNS] for line in lines[: LINES - 1]]
    while shown and not shown[-1].strip():
        shown.pop()
    block = "\n".join(["```", f"$ {COMMAND}", *shown, *["..."] * (len(lines) > len(shown)), "```"])
    picture = [f"![{WORDS}]({FOLDER / PICTURE})"] if (saved / PICTURE).is_file() else []
    return "\n\n".join([*picture, block])
