"""Batch scripts: run by bash, with a launcher, a job and a Slurm that only note what they are told."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.errors import InternalError, ResourceError, UsageError
from tilewright.runtime.engines.slurm import Request, script, submit

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
COMMAND = ("classify", "-i", "it's in.bin", "-o", "out.bin", "--model", "m")
JOB = """#!/bin/bash
trap 'exit 75' USR1
echo job "$@" >> notes
[ -e slow ] && for _ in {1..3000}; do sleep 0.01; done
[ -e kill ] && kill -KILL $$
exit $(cat code)
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A directory with programs of those names, in front of the PATH, that note how they are called."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    programs = {"srun": 'echo srun >> notes\nexec "$@"', "scontrol": 'echo scontrol "$@" >> notes'}
    programs["sbatch"] = (
        'echo sbatch "$@" >> notes\n[ -e refuse ] && echo no such partition >&2 && exit 1\necho "17;here"'
    )
    for name, text in programs.items():
        put(tmp_path / name, f"#!/bin/bash\n{text}\n")
    put(tmp_path / "job", JOB)
    put(tmp_path / "code", "0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "job"))
    return tmp_path


def put(path, text):
    path.write_text(text)
    path.chmod(0o755)


def start(there, request):
    put(there / "script", script(request))
    assert subprocess.run(["bash", "-n", "script"], check=True, capture_output=True).stderr == b""
    command = ["bash", str(there / "script")]
    return subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def notes(there):
    path = there / "notes"
    return path.read_text().splitlines() if path.exists() else []


def test_a_step_of_mpi(there):
    process = start(there, Request(COMMAND, tasks=8, cores=4, gpus=1, time="04:00:00", more=("partition=a,b",)))
    said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert notes(there) == ["srun", f"job -m tilewright {' '.join(COMMAND)} --grace 60 --engine mpi"]
    asked = [line for line in (there / "script").read_text().splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        f"#SBATCH --{line}"
        for line in (
            "job-name=tilewright-classify",
            "ntasks=8",
            "cpus-per-task=4",
            "gpus-per-task=1",
            "time=04:00:00",
            "requeue",
            "open-mode=append",
            "signal=B:USR1@75",
            "partition=a,b",
        )
    ]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("code", [75, 137])
def test_a_time_limit(there, monkeypatch, number, code):
    """The job ends in order, and is queued again; also where srun says that the last ranks were killed."""
    put(there / "job", JOB.replace("exit 75", f"exit {code}"))
    put(there / "slow", "")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "50")
    process = start(there, Request(COMMAND))
    until = time.monotonic() + 30
    while len(notes(there)) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert notes(there)[2:] == ["scontrol requeue 42"]


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [
        ("75", "", True),
        ("75", "99", True),
        ("75", "100", False),
        ("1", "", False),
        ("137", "4", True),
        ("137", "5", False),
    ],
)
def test_what_is_queued_again(there, monkeypatch, code, restarts, again):
    put(there / "code", code)
    if code == "137":
        put(there / "kill", "")
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    process = start(there, Request(COMMAND))
    process.communicate(timeout=30)
    assert process.returncode == int(code)
    assert ("scontrol requeue 42" in notes(there)) == again


def test_an_array(there, monkeypatch):
    request = Request(COMMAND, tasks=3, array=True)
    for task, part in (("2", " --part 2/3"), ("", "")):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        process = start(there, request)
        said = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert notes(there)[-1] == f"job -m tilewright {' '.join(COMMAND)} --grace 60{part}"
    assert "srun" not in notes(there) and "--array=0-2 SCRIPT" in (there / "script").read_text()


def test_submission(there):
    assert submit(Request(COMMAND, tasks=2), "s") == ["17"]
    assert submit(Request(COMMAND, tasks=2, array=True), "s") == ["17", "17"]
    array = ["sbatch --parsable --array=0-1 s", "sbatch --parsable --dependency=afterany:17 s"]
    assert notes(there) == ["sbatch --parsable s", *array]
    put(there / "refuse", "")
    with pytest.raises(InternalError, match="sbatch refuses: no such partition"):
        submit(Request(COMMAND), "s")


def test_no_slurm(there, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ResourceError, match="there is no sbatch on this machine"):
        submit(Request(COMMAND), "s")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(()), "a job is wanted: generate, classify"),
        (Request(("doctor",)), "a job is wanted"),
        (Request((*COMMAND, "--engine", "local")), "the script gives the command its --engine"),
        (Request((*COMMAND, "--grace=5")), "the script gives the command its --grace"),
        (Request(COMMAND, more=("comment=a\nb",)), "unusual characters"),
        (Request(COMMAND, launcher="srun; rm"), "unusual characters"),
        (Request(COMMAND, time="$(date)"), "unusual characters"),
    ],
)
def test_what_is_refused(request_, message):
    with pytest.raises(UsageError, match=message):
        script(request_)


def test_the_verb(there, capsys):
    for arguments in ([], ["--script", "s.sh"], ["--script", "s.sh", "--submit", "--array"]):
        with pytest.raises(SystemExit) as ended:
            main(["slurm", "-n", "4", *arguments, "generate", "-n", "10", "--help"])
        assert not ended.value.code
        said = capsys.readouterr().out
        text = Path("s.sh").read_text() if arguments else said
        assert "tilewright generate -n 10 --help --grace 60)" in text and ("ntasks=4" in text) != (
            "--array" in arguments
        )
    assert said == "Written to s.sh\nSubmitted: 17, 17\n"
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "--submit", "generate"])
    assert ended.value.code == 2
    Path("prompts.jsonl").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["slurm", "--script", "prompts.jsonl", "generate"])
    assert ended.value.code == 2 and Path("prompts.jsonl").read_text() == "{}"
