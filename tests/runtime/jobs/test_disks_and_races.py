"""Jobs of all verbs on a full disk, and two runs of one command at once: what is there is whole, the rerun right."""

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from faults import Faults
from forked_verbs import PATHS, Forked
from kill_attack import CASES, NAMES, Attack, warm
from tilewright.cli import main

pytest.importorskip("pyarrow")
WRITTEN = [
    name
    for name in NAMES
    if name.id in ("generate jsonl to jsonl", "generate jsonl to parquet", "classify parquet to parquet")
]
REASON = os.strerror(errno.ENOSPC)[1:]


@pytest.fixture(scope="module")
def pair(cases, request):
    """(a directory with all inputs, two that run commands in it, each in processes of its own)."""
    both = [Forked(cases, *warm(f"runner{number}-", request), log=f"{number}.log") for number in range(2)]
    yield cases, both
    for forked in both:
        forked.close()


def run(command):
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    return ended.value.code or 0


class Here:
    """What runs an attack's commands in this process."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, *command, **said):
        return run([*map(str, command)]), 0.0

    def said(self):
        return self.capsys.readouterr().err


def fail_at(attack, monkeypatch, nth, lasting):
    """A run whose Nth call of the system fails, and the one after it. Returns how many it made."""
    earlier = b"earlier" * bool(nth % 2)
    if earlier:
        attack.output.write_bytes(earlier)
    with monkeypatch.context() as patch:
        # a run that cannot make its cache sets this to "off", which later tests' workers would inherit
        patch.setenv("TILEWRIGHT_CACHE", os.environ.get("TILEWRIGHT_CACHE", ""))
        faults = Faults(patch, nth, errno.ENOSPC, lasting)
        code = run([*attack.command(1), "--force"])
    said = attack.said()
    assert code == 0 or (code == 4 and REASON in said), (nth, code, said)
    if code == 4 and attack.output.exists():
        assert attack.output.read_bytes() == earlier or attack.found() == attack.right, nth
    assert run([*attack.command(1), "--force"]) == 0, attack.said()
    attack.check()
    return faults.made, code == 4


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("step", [pytest.param(7, marks=pytest.mark.long), 71])
@pytest.mark.parametrize("name", WRITTEN)
def test_every_call_of_the_system_fails(cases, monkeypatch, capsys, tmp_path, name, step, lasting):
    """For every 7th or 71st N: exit code 4 and the reason, or the job did without; then the rerun."""
    monkeypatch.chdir(cases)
    attack = Attack(CASES[name], tmp_path / "job", Here(capsys), np.random.default_rng(step))
    attack.finish(1)
    nth, failed, tried = 1, 0, 0
    while True:
        made, refused = fail_at(attack, monkeypatch, nth, lasting)
        failed, tried, nth = failed + refused, tried + 1, nth + step
        if made < nth - step:
            break
    print(f"{name}: {tried} runs, {failed} refused")
    assert failed > tried // 2


FULL = """
import os, sys
import numpy as np
from pathlib import Path
from forked_verbs import Forked
from kill_attack import CASES, Attack, warm

assert os.system("mount -t tmpfs -o size=24m none disk") == 0
name, tries, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
case, counts = CASES[name], {"full": 0, "whole": 0}
forked = Forked(Path("."), case.warmed(f"warm-{os.getpid()}"))
rng = np.random.default_rng(len(name))
attack = Attack(case, Path("disk/job").resolve(), forked, rng)
before = os.statvfs("disk")
attack.check = lambda: None
attack.finish(workers)
after = os.statvfs("disk")
del attack.check
attack.check()
taken = (before.f_bavail - after.f_bavail) * before.f_frsize
for _ in range(tries):
    left = os.statvfs("disk").f_bavail * before.f_frsize
    Path("disk/ballast").write_bytes(bytes(left - int(rng.uniform(0, 1.2) * taken)))
    code, _ = attack.end(workers)
    said = forked.said().splitlines()[-1]
    assert code == 0 or (code == 4 and ("o space left" in said or " disk has " in said)), (code, said)
    assert not attack.output.exists() or attack.found() == attack.right
    os.unlink("disk/ballast")
    counts["full" if code == 4 else "whole"] += 1
    attack.finish(1)
forked.close()
assert counts["full"], counts
print(name, counts)
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("tries", [2, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_a_disk_that_is_full(cases, name, tries, workers):
    """A file system in memory, of which too little is left: exit code 4, and the rerun when there is enough."""
    (cases / "disk").mkdir(exist_ok=True)
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", cases / "disk"]
    with suppress(FileNotFoundError):
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            pytest.skip("no mounts here")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    command = ["unshare", "-rm", sys.executable, "-c", FULL, name, str(tries), str(workers)]
    done = subprocess.run(command, cwd=cases, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    print(done.stdout, end="")


def race(pair, name, times, number, most=1):
    """Two runs at once, the second a moment later: one does the work. The other waits for the lease for a moment, then
    finds all done, or says who is at work."""
    path, both = pair
    rng = np.random.default_rng((number, len(name)))
    attack = Attack(CASES[name], path / f"race {number} {name}", both[0], rng)
    for _ in range(3):  # the first takes longer
        attack.finish(1)
    done, refused = 0, 0
    for _ in range(times):
        commands, later = (
            [attack.command(rng.integers(most) + 1) for _ in both],
            rng.uniform(0, 0.5) * attack.seconds[1],
        )

        def start(number, commands=commands, later=later):
            time.sleep(number * later)
            return both[number](*commands[number])[0]

        with ThreadPoolExecutor(2) as pool:
            codes = sorted(pool.map(start, range(2)))
        assert codes in ([done, done], sorted([done, 4])), (codes, [forked.said()[-1000:] for forked in both])
        if 4 in codes:
            assert any("another run works on this job" in forked.said() for forked in both)
        refused += 4 in codes
        attack.check()
    print(f"{name}: {times} races, {refused} refused")


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_at_once(pair, name):
    race(pair, name, 3, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_many_races(pair, name):
    race(pair, name, 8, 1, most=2)
