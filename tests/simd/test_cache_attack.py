"""Another user of the machine attacks the cache of compiled kernels: two user ids, one directory, no foreign kernel.

The attacker exchanges names in a loop: directories, links, hard links, pipes and files, with kernels of his in them,
whose seals fit, and with pickles, which an earlier format would have run. The victim loads in a loop.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ATTACKER, VICTIM = 61_001, 61_002
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of two other users")

DROP = """
import os, sys
def become(user):
    "Leave root. Everything has to be imported before: another user may be unable to read this Python."
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
"""

PLANTS = (
    DROP
    + """
import hashlib, pickle, random, shutil
import msgspec
from pathlib import Path

class Run:
    def __reduce__(self):
        return os.mkdir, (sys.argv[-1] + "/ran",)

def sealed(payload, magic=b""):
    return magic + hashlib.sha256(payload).digest() + payload

def plant(folder, kernel):
    "A directory as the victim's, with two kernels, of this format and of the earlier one."
    folder.mkdir()
    stored = ("test.attack", "int64(int64)", "a", "b", "c", "d", [], 1, [], [], b"foreign")
    (folder / kernel).write_bytes(sealed(msgspec.msgpack.encode(stored), b"TWKERNEL"))
    (folder / f"p{kernel}").write_bytes(sealed(pickle.dumps(Run())))
    (folder / kernel).chmod(0o644)
    folder.chmod(0o755)
"""
)

ATTACK = (
    PLANTS
    + """
name, own, kernel, key = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
swaps, loads = os.open(sys.argv[-1] + "/swaps", os.O_WRONLY), os.open(sys.argv[-1] + "/loads", os.O_RDONLY)
become(int(sys.argv[1]))
plant(own / "bare", kernel)
(own / "whole").mkdir()
(own / "whole").chmod(0o755)
plant(own / "whole" / key, kernel)
rng, count = random.Random(1), 0
def swap(kind):
    new = own / "new"
    if kind == "directory":
        shutil.copytree(own / "whole", new)
    elif kind == "link to his own":
        new.symlink_to(own / "whole")
    elif kind == "link to the victim's":
        new.symlink_to(sys.argv[6])
    elif kind == "pipe":
        os.mkfifo(new)
    elif kind == "file":
        new.write_bytes(b"x")
    elif kind == "link to itself":
        new.symlink_to(name)
    elif kind == "victim's with a foreign key":
        new.mkdir(mode=0o777)
        new.chmod(0o777)
        (new / key).symlink_to(own / "whole" / key)
    return new
KINDS = ["directory"] * 4 + ["link to his own", "link to the victim's", "pipe", "file", "link to itself",
         "victim's with a foreign key", "nothing"]
def burst():
    "Links in place of each other as fast as the system renames: for what is checked by name and opened by name."
    for i in range(100):
        os.symlink(own / "whole" if i % 2 else sys.argv[6], own / "new")
        os.rename(own / "new", name)
print("ready", flush=True)
try:
    while True:
        try:
            if rng.random() < 0.2:
                burst()
        except OSError:
            pass
        kind = rng.choice(KINDS)
        aside = own / f"aside{count}"
        try:
            os.rename(name, aside)  # in a sticky directory only what is his
        except OSError:
            pass
        try:
            if kind != "nothing":
                os.rename(swap(kind), name)
        except OSError:
            pass
        if rng.random() < 0.3:  # two loads meet it as it is
            until = os.pread(loads, 20, 0), 2
            while until[1]:
                os.sched_yield()
                now = os.pread(loads, 20, 0)
                until = (now, until[1] - 1) if now != until[0] else until
        for rest in (own / "new", aside):
            if rest.is_symlink() or not rest.is_dir():
                rest.unlink(missing_ok=True)
            else:
                shutil.rmtree(rest, ignore_errors=True)
        count += 1
        os.pwrite(swaps, b"%20d" % count, 0)
finally:
    os.pwrite(swaps, b"%20d" % 10**9, 0)  # the victim waits for no more
"""
)

LOAD = (
    DROP
    + """
import json
from collections import Counter
from pathlib import Path
from tilewright.errors import ResourceError
from tilewright.simd import cache
from numba.core.runtime import rtsys
name, rounds, sticky = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "sticky"
swaps, loads = os.open(sys.argv[5] + "/swaps", os.O_RDONLY), os.open(sys.argv[5] + "/loads", os.O_WRONLY)
cache.key()
become(int(sys.argv[1]))
counts = Counter()
def rebuilt(stored, *rest):
    counts["foreign" if stored.object_code == b"foreign" else "own"] += 1
cache._rebuilt = rebuilt
rtsys.initialize = lambda context: None
os.environ["TILEWRIGHT_CACHE"] = str(name)
kernels = [cache.KernelCache("test.attack", lambda x: x), cache.KernelCache("ptest.attack", lambda x: x)]
own = cache.Stored("test.attack", "int64(int64)", "a", "b", "c", "d", [], 1, [], [], b"own")
payload = cache.msgspec.msgpack.encode(own)
whole = cache.MAGIC + cache.hashlib.sha256(payload).digest() + payload
i = -1
while (i := i + 1) < rounds or int(os.pread(swaps, 20, 0) or 0) < rounds // 20:  # whoever gets the processor
    os.pwrite(loads, b"%20d" % i, 0)
    before = counts.total()
    try:
        if i % 4 == 0:
            cache.check(cache.directory())
        for kernel in kernels:
            kernel.load_overload("int64(int64)", None)
        kernel = kernels[0]
        cache._folder().write(kernel._file("int64(int64)"), whole)
        kernel.load_overload("int64(int64)", None)
    except cache.UnsafeDirectoryError:
        counts["refused"] += 1
    except ResourceError:
        counts["cannot be made"] += 1
    except OSError:
        counts["cannot be written"] += 1
    if counts.total() == before:
        counts["none there"] += 1
    if sticky and i % 4 == 3:  # the attacker cannot remove the victim's directory: leave the name to him again
        for folder, _, files in os.walk(name, topdown=False):
            for file in files:
                try:
                    os.unlink(os.path.join(folder, file))
                except OSError:
                    pass
            try:
                os.rmdir(folder)
            except OSError:
                pass
print(json.dumps(counts | {"loads": i, "swaps": int(os.pread(swaps, 20, 0) or 0)}))
"""
)


def owned(path: Path, user: int, mode: int) -> Path:
    path.mkdir()
    os.chown(path, user, user)
    path.chmod(mode)
    return path


@pytest.fixture
def ground(tmp_path_factory):
    """A directory that both users can reach."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="tilewright-attack-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def attack(ground: Path, mode: int, rounds: int) -> tuple[Counter, Counter]:
    """What `rounds` loads met while the attacker exchanged the directory TILEWRIGHT_CACHE, and what 3 met alone."""
    from tilewright.simd import cache

    source = Path(cache.__file__).resolve().parents[2]
    ran = owned(ground / "ran", VICTIM, 0o777)
    shared, his, mine = ground / "shared", owned(ground / "his", ATTACKER, 0o755), owned(ground / "mine", VICTIM, 0o700)
    for counter, user in (("swaps", ATTACKER), ("loads", VICTIM)):
        (ran / counter).touch()
        os.chown(ran / counter, user, user)
    shared.mkdir()
    shared.chmod(mode)
    kernel, key = cache.KernelCache("test.attack", lambda x: x)._file("int64(int64)"), cache.key()
    environment = {**os.environ, "PYTHONPATH": str(source), "HOME": str(mine), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(user: int, program: str, *arguments, name: str = "cache") -> subprocess.Popen:
        words = [user, shared / name, *arguments]
        return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], env=environment, cwd=ground,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    with start(ATTACKER, ATTACK, his, kernel, key, mine, ran) as attacker:
        try:
            first = attacker.stdout.readline()
            assert first == "ready\n", attacker.stderr.read()
            with start(VICTIM, LOAD, rounds, "sticky" if mode & 0o1000 else "open", ran) as victim:
                out, err = victim.communicate()
            assert attacker.poll() is None, attacker.stderr.read()
        finally:
            attacker.kill()
    assert victim.returncode == 0, err
    assert not (ran / "ran").exists(), "a pickle was run"
    with start(VICTIM, LOAD, 3, "open", ran, name="quiet") as alone:
        quiet, err = alone.communicate()
    assert alone.returncode == 0, err
    return Counter(json.loads(out)), Counter(json.loads(quiet))


def check(ground: Path, mode: int, rounds: int) -> None:
    met, alone = attack(ground, mode, rounds)
    print(f"{met.pop('loads'):,} loads and {met.pop('swaps'):,} swaps, mode {mode:04o}: {dict(met)}")
    assert met["foreign"] == 0 < met["refused"], met
    del alone["loads"], alone["swaps"]
    assert set(alone) == ({"own"} if mode & 0o1000 else {"refused"}), "without an attacker"


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_another_user_exchanges_the_directory(ground, mode):
    check(ground, mode, 1_000)


@pytest.mark.long
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_another_user_exchanges_the_directory_for_long(ground, mode):
    check(ground, mode, 100_000)
