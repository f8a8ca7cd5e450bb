"""Write the drawings of docs/learn: `python docs/_hooks/drawings.py [FOLDER]`."""

import sys
from pathlib import Path

from tilewright.bench.report.drawings import files

FOLDER = Path(__file__).resolve().parents[1] / "learn/img"


def main() -> None:
    """One SVG per file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, drawing in files().items():
        (folder / f"{name}.svg").write_text(drawing.svg())


main()
