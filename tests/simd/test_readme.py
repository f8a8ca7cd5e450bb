"""The README's example runs, and its table names every function."""

import re
import subprocess
import sys
from pathlib import Path

from tilewright import simd

TEXT = (Path(simd.__file__).parent / "README.md").read_text()


def test_the_example_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(example)
    subprocess.run([sys.executable, str(program)], check=True)


def test_the_table_names_every_function():
    functions = [name for name in simd.__all__ if not name.isupper() and name != "Kernel"]
    missing = [name for name in functions if f"`{name}" not in TEXT]
    assert len(functions) > 40
    assert not missing
