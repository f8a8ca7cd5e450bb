"""Compiled kernels on disk: found again, never stale, never from a directory that others may write to."""

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tilewright.errors import ResourceError
from tilewright.simd import cache

PROGRAM = """
import sys
import numba.core.compiler as compiler
compiled = []
original = compiler.compile_extra
def watch(*a, **k):
    compiled.append(a[2].__name__)
    return original(*a, **k)
compiler.compile_extra = watch
import numba.core.dispatcher as dispatcher
dispatcher.compiler.compile_extra = watch
from numba import types
from tilewright import simd
@simd.kernel(types.int64(types.int64), name="test.cached")
def cached(x):
    return 3 * x
assert cached(5) == 15
assert "cached" in compiled or "numba.np.arraymath" not in sys.modules, "what only a compiler needs was imported"
print("compiled" if "cached" in compiled else "loaded")
"""


def start(folder, **more) -> subprocess.Popen:
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(folder), **more}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(folder) -> str:
    process = start(folder)
    out, err = process.communicate()
    return out.strip() or err


def kernel_file(folder: Path) -> Path:
    (found,) = folder.rglob("*.kernel")
    return found


def test_a_second_process_loads_and_a_damaged_file_is_compiled_again(tmp_path):
    assert run(tmp_path) == "compiled"
    assert run(tmp_path) == "loaded"
    file = kernel_file(tmp_path)
    whole = file.read_bytes()
    for damaged in (whole[:-40], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b""):
        file.write_bytes(damaged)
        assert run(tmp_path) == "compiled"
        assert file.read_bytes() != damaged
    assert run(tmp_path) == "loaded"


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.long)])
def test_many_processes_start_cold_together(tmp_path, count):
    processes = [start(tmp_path) for _ in range(count)]
    answers = [process.communicate() for process in processes]
    assert {out.strip() for out, _ in answers} <= {"compiled", "loaded"}, answers
    assert run(tmp_path) == "loaded"
    assert not list(tmp_path.rglob(".new-*")), "no temporary file is left"


def test_off_writes_nothing(tmp_path):
    process = start("off", HOME=str(tmp_path))
    out, _ = process.communicate()
    assert out.strip() == "compiled" and not list(tmp_path.rglob("*"))


def make_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


UNSAFE = {
    "others may write": lambda folder: (folder.mkdir(), folder.chmod(0o777)),
    "group may write": lambda folder: (folder.mkdir(), folder.chmod(0o770)),
    "a file": lambda folder: folder.write_text(""),
    "a link": make_link,
}


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_directory_is_refused(tmp_path, name):
    folder = tmp_path / "kernels"
    UNSAFE[name](folder)
    with pytest.raises(ResourceError, match="kernels") as caught:
        cache.check(folder)
    assert "TILEWRIGHT_CACHE" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_foreign_directory_is_refused(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ResourceError, match="belongs to user 12345"):
        cache.check(folder)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles, or loads, f(x) = x + `more` under a name of its own; returns what was done, and the result for 5."""
    from numba import types
    from numba.core import event

    from tilewright.simd.kernel import Kernel, _names

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "kept"))

    def run(name: str, more: int = 1) -> tuple[str, int]:
        class Compiled(event.Listener):
            count = 0

            def on_start(self, event):
                self.count += 1

            def on_end(self, event):
                pass

        _names.discard(name)
        kernel = Kernel(lambda x: x + more, types.int64(types.int64), name)
        with event.install_listener("numba:compile", listener := Compiled()):
            found = kernel(5)
        assert kernel.address
        return "compiled" if listener.count else "loaded", found

    return run


class Run:
    """What a pickle can do when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_file_holds_no_pickle_and_none_is_read(compiled, tmp_path):
    assert [compiled("test.plain"), compiled("test.plain")] == [("compiled", 6), ("loaded", 6)]
    file = kernel_file(tmp_path)
    assert not any(op in file.read_bytes() for op in (b"numba.core", b"_rebuild", b"\x8c\x08builtins"))
    for payload in (pickle.dumps(Run(tmp_path / "ran")), b"", b"\xc1", msgspec.msgpack.encode(["x"] * 11)):
        for magic in (cache.MAGIC, b""):
            file.write_bytes(magic + hashlib.sha256(payload).digest() + payload)
            file.chmod(0o600)
            assert compiled("test.plain") == ("compiled", 6) and not (tmp_path / "ran").exists()
    assert compiled("test.plain") == ("loaded", 6)


def test_a_file_of_another_kernel_is_not_loaded_under_this_name(compiled, tmp_path):
    compiled("test.one", 1)
    one = kernel_file(tmp_path)
    content = one.read_bytes()
    one.unlink()
    compiled("test.two", 2)
    kernel_file(tmp_path).write_bytes(content)
    assert compiled("test.two", 2) == ("compiled", 7)


def test_an_edited_kernel_of_another_program_is_compiled_again(compiled):
    """Its source is not in the hash of simd's and ops' files."""
    assert [compiled("test.edited", 1), compiled("test.edited", 2)] == [("compiled", 6), ("compiled", 7)]
    assert compiled("test.edited", 1) == ("loaded", 6)


def test_a_directory_in_place_of_a_kernel_and_what_a_killed_process_left(compiled, tmp_path):
    compiled("test.plain")
    file = kernel_file(tmp_path)
    file.unlink()
    file.mkdir()
    (file.parent / ".new-0123abcd").write_bytes(b"half of a kernel")
    cache.check(file.parent)  # as a new process would
    assert [compiled("test.plain"), compiled("test.plain")] == [("compiled", 6), ("loaded", 6)]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_private_directory_is_made(tmp_path):
    cache.check(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def copied(tmp_path: Path) -> Path:
    """A copy of the package."""
    package = Path(cache.__file__).resolve().parent.parent
    ignored = shutil.ignore_patterns("__pycache__", "data")
    return Path(shutil.copytree(package, tmp_path / "tilewright", ignore=ignored))


def test_a_changed_source_changes_the_key(tmp_path):
    """The key is a hash of simd's and ops' files: a copy of the package with one more comment has another."""
    package = copied(tmp_path)
    ask = [sys.executable, "-c", "from tilewright.simd import cache; print(cache.key())"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def answer() -> str:
        return subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout

    before = answer()
    with (package / "ops/matmul/cpu/naive.py").open("a") as file:
        file.write("# a comment\n")
    assert answer() != before == f"{cache.key()}\n"


@pytest.mark.parametrize("setting", cache.SETTINGS)
def test_a_setting_of_numba_changes_the_key(setting, monkeypatch):
    """NUMBA_CPU_NAME=generic compiled kernels for any CPU, and later processes without it ran them."""
    from numba.core import config

    before = cache.key.__wrapped__()
    monkeypatch.setattr(config, setting, "another", raising=False)
    assert cache.key.__wrapped__() != before


PROBE = """
from numba import types
from tilewright import simd


@simd.kernel(types.int64(types.int64), name="test.probe")
def probe(x):
    return x + 1
"""

RUN_PROBE = """
import sys
from pathlib import Path
from tilewright.ops.probe import probe

for edited in map(Path, sys.argv[1:]):
    edited.write_text(edited.read_text().replace("x + 1", "x + 2"))
print(probe(5))
"""


def test_a_kernel_whose_source_is_edited_before_its_first_call_is_not_saved(tmp_path):
    """The process compiles what it has imported. The next one imports the edited file, and must not load that."""
    source = copied(tmp_path) / "ops" / "probe.py"
    source.write_text(PROBE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["TILEWRIGHT_CACHE"] = str(tmp_path / "kernels")

    def answer(*edited: str) -> str:
        command = [sys.executable, "-c", RUN_PROBE, *edited]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert [answer(str(source)), answer(), answer()] == ["6\n", "7\n", "7\n"]


def test_a_package_without_sources_saves_no_kernels(tmp_path, monkeypatch):
    """All versions of it would have the same hash."""
    monkeypatch.setattr(cache, "_package", lambda: tmp_path)
    monkeypatch.setattr(cache, "_first_read", cache._first_read.__wrapped__)
    assert not cache._are_sources_unchanged()
    (tmp_path / "simd").mkdir()
    (tmp_path / "simd" / "one.py").touch()
    assert cache._are_sources_unchanged()


def test_a_kernel_with_an_address_of_this_process_is_not_saved(tmp_path, monkeypatch):
    """Numba compiles the address of an array that is not contiguous. Another process has something else there."""
    import numpy as np
    from numba import types

    from tilewright.simd.kernel import Kernel

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    table = np.arange(8)[::2]
    assert Kernel(lambda i: table[i], types.int64(types.int64), "test.address")(3) == 6
    assert not list(tmp_path.rglob("*.kernel"))


FACTORY = """
import sys
import numpy as np
from numba import types
from tilewright import simd

def kernel_of(scale):
    @simd.inline
    def long(x, y):  # several uses of a long body: LLVM alone would leave it a function of its own
        total = 0.0
        for i in range(x.size):
            for j in range(y.size):
                total += scale * x[i] * y[j] + np.sin(total) * np.cos(x[i]) + np.exp(y[j] - x[i]) * np.log1p(x[j])
        return total

    @simd.inline
    def longer(x, y):
        return long(x, y) + long(y, x) + long(x, x)

    @simd.kernel(types.float64(types.float64[::1], types.float64[::1]), name=f"test.factory.{scale}")
    def kernel(x, y):
        return longer(x, y) + longer(y, x) * 2 + longer(x, x) + longer(y, y) * 3

    return kernel

x, y = np.linspace(1, 2, 5), np.linspace(3, 4, 5)
print(*[kernel_of(int(scale))(x, y) for scale in sys.argv[1:]])
"""


def test_kernels_of_one_factory_keep_apart(tmp_path):
    """Compiled by two processes and loaded by a third, each is still itself (see `simd.inline`)."""
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path)}

    def answers(*scales: str) -> list[str]:
        command = [sys.executable, "-c", FACTORY, *scales]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    alone = answers("2") + answers("5")
    assert alone[0] != alone[1]
    assert answers("2", "5") == alone
