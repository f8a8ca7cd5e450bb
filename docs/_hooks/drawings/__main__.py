"""Write every drawing of docs/learn: `python docs/_hooks/drawings [FOLDER]`. Sizes are the kernels' own constants."""

import sys
from pathlib import Path

import pictures_of_products
import pictures_of_rows
import pictures_of_windows

FOLDER = Path(__file__).resolve().parents[2] / "learn/img"


def main() -> None:
    """One SVG per function of the modules' `DRAWINGS`."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for module in (pictures_of_products, pictures_of_rows, pictures_of_windows):
        for name, draw in module.DRAWINGS.items():
            (folder / f"{name}.svg").write_text(draw().svg())


main()
