"""Which code runs here: the commit of the checkout that the package lies in."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit that is checked out, with "-dirty" if the package was changed; "unknown" outside a checkout."""
    package = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", package, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # fails for an installed copy that lies inside another checkout
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
