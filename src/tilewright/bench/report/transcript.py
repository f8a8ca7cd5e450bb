"""What `tilewright demo --save` printed and drew, as README.md shows it: the faces, and what each model did."""

import re
from pathlib import Path

FOLDER, TEXT = Path("results/demo"), "demo.txt"  # of a checkout
PICTURE, WORDS = "faces.png", "faces that the model `portraits` drew"
COMMAND = "tilewright demo"
TIMED = re.compile(r"^\S.*\([^)]*\d s\).*", re.MULTILINE)  # "critic reads 8 reviews, ... (0.005 s)"
LINES, COLUMNS = 4, 120  # at most, of the output
MISSING = "Not run yet: `tilewright demo --save` does."


def transcript(root: Path) -> str:
    """The picture, then a block with the command and the lines of its output that contain a time, for a README in
    `root`.

    The lines name the pictures as the command without `--save` does: in demo/.
    """
    saved = root / FOLDER
    if not (saved / TEXT).is_file():
        return MISSING
    text = (saved / TEXT).read_text(encoding="utf-8").replace(str(FOLDER), FOLDER.name)
    lines = [line[:COLUMNS] for line in TIMED.findall(text)]
    block = "\n".join(["```", f"$ {COMMAND}", *lines[:LINES], "```"])
    picture = [f"![{WORDS}]({FOLDER / PICTURE})"] if (saved / PICTURE).is_file() else []
    return "\n\n".join([*picture, block])
