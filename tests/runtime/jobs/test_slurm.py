"""Batch scripts: run by bash, with a launcher, a job and a Slurm that only note what they are told."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.errors import ResourceError, UsageError
from tilewright.runtime.engines.slurm import MOST, Request, largest_array, script, submit

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
COMMAND = ("classify", "-i", "it's in.bin", "-o", "out.bin", "--model", "m")
HANGS = 300  # seconds: of no test that passes, however busy the machine is
JOB = """#!/bin/bash
trap 'exit 75' USR1
echo job "$@" >> notes
[ -e slow ] && while true; do sleep 0.01; done
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


@pytest.fixture
def start(there):
    """Starts the script of a request; what it has started is killed with it at the end, however the test ends."""
    started = []

    def call(request, *arguments):
        put(there / "script", script(request))
        assert subprocess.run(["bash", "-n", "script"], check=True, capture_output=True).stderr == b""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = ["bash", str(there / "script"), *arguments]
        started.append(subprocess.Popen(command, cwd="/", start_new_session=True, **pipes))
        return started[-1]

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def notes(there):
    path = there / "notes"
    return path.read_text().splitlines() if path.exists() else []


def test_a_step_of_mpi(there, start):
    process = start(Request(COMMAND, tasks=8, cores=4, gpus=1, time="04:00:00", more=("partition=a,b",)))
    said = process.communicate(timeout=HANGS)
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
def test_a_time_limit(there, start, monkeypatch, number, code):
    """The job ends in order, and is queued again; also where srun says that the last ranks were killed."""
    put(there / "job", JOB.replace("exit 75", f"exit {code}"))
    put(there / "slow", "")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "50")
    process = start(Request(COMMAND))
    until = time.monotonic() + HANGS
    while len(notes(there)) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=HANGS)
    assert process.returncode == code, said
    assert notes(there)[2:] == ["scontrol requeue 42"]


def test_signals_that_whoever_started_the_tests_ignores(tmp_path):
    """As under `trap '' TERM`, `nohup` or `&`: bash could not trap them, and the tests above would wait for ever."""
    name = f"{__file__}::test_a_time_limit[75-15]"
    code = f"""if True:
        import os, signal, sys
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", {name!r}])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


# Read by bash before the script: sends SIGTERM when the script comes to its STEP-th command after the trap.
AT_STEP = """
reached=-1
each() {
    case "$1" in "trap stop"*) reached=0; return ;; esac
    [ "$reached" -ge 0 ] || return 0
    if [ "$reached" -eq STEP ]; then
        [ STEP -lt 2 ] || until grep -q ^job notes; do sleep 0.01; done
        kill -TERM "$$"
    fi
    reached=$((reached + 1))
}
trap 'each "$BASH_COMMAND"' DEBUG
"""


@pytest.mark.parametrize("step", range(5))
def test_a_signal_before_each_command_of_the_script(there, start, monkeypatch, step):
    """From the trap to the wait no signal is lost. A job that has no trap yet dies of it, and is queued again, too."""
    put(there / "slow", "")
    put(there / "notes", "")
    put(there / "at_step", AT_STEP.replace("STEP", str(step)))
    monkeypatch.setenv("BASH_ENV", str(there / "at_step"))
    process = start(Request(COMMAND))
    said = process.communicate(timeout=HANGS)
    assert process.returncode in ((75,) if step > 1 else (75, 128 + signal.SIGUSR1)), said
    assert notes(there)[-1] == "scontrol requeue 42", said


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [
        ("75", "", True),
        ("75", "99", True),
        ("75", "100", False),
        ("1", "", False),
        ("137", "4", True),
        ("137", "5", False),
        ("9", "4", True),
    ],
)
def test_what_is_queued_again(there, start, monkeypatch, code, restarts, again):
    put(there / "code", code)
    if code == "137":
        put(there / "kill", "")
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    process = start(Request(COMMAND))
    process.communicate(timeout=HANGS)
    assert process.returncode == (137 if code == "9" else int(code))
    assert ("scontrol requeue 42" in notes(there)) == again


def test_an_array(there, start, monkeypatch):
    """The tasks of one that starts at part 4; and the last job."""
    request = Request(COMMAND, tasks=7, array=True)
    for task, part in (("2", " --part 6/7+"), ("", "")):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        process = start(request, *(["4"] if task else []))
        said = process.communicate(timeout=HANGS)
        assert process.returncode == 0, said
        assert notes(there)[-1] == f"job -m tilewright {' '.join(COMMAND)} --grace 60 --engine local{part}"
    assert "srun" not in notes(there) and "--array=0-6 SCRIPT 0" in (there / "script").read_text()


def test_more_tasks_than_an_array_may_have(there):
    """Throttled, the arrays follow each other: together they run no more tasks than the throttle allows."""
    request = Request(COMMAND, tasks=7, array=True)
    assert submit(request, "s", 3) == ["17"] * 4
    first = [f"sbatch --parsable --array={tasks} s {part}" for tasks, part in (("0-2", 0), ("0-2", 3), ("0-0", 6))]
    assert notes(there) == [*first, "sbatch --parsable --dependency=afterany:17:17:17 s"]
    assert submit(Request(COMMAND, tasks=4, array=True, throttle=2), "s", 3) == ["17"] * 3
    assert notes(there)[4:] == [
        "sbatch --parsable --array=0-2%2 s 0",
        "sbatch --parsable --dependency=afterany:17 --array=0-0%2 s 3",
        "sbatch --parsable --dependency=afterany:17:17 s",
    ]
    told = [line.removeprefix("#   ") for line in script(request, 3).splitlines() if line.startswith("#   ")]
    assert told == [
        "id0=$(sbatch --parsable --array=0-2 SCRIPT 0)",
        "id1=$(sbatch --parsable --array=0-2 SCRIPT 3)",
        "id2=$(sbatch --parsable --array=0-0 SCRIPT 6)",
        "sbatch --dependency=afterany:$id0:$id1:$id2 SCRIPT",
    ]


@pytest.mark.parametrize(
    ("said", "most"),
    [("echo MaxArraySize            = 20", 20), ("echo MaxArraySize = 0", MOST), ("echo no controller; exit 1", MOST)],
)
def test_the_largest_array(there, said, most):
    put(there / "scontrol", f"#!/bin/bash\n{said}\n")
    assert largest_array() == most


def test_submission(there):
    assert submit(Request(COMMAND, tasks=2), "s") == ["17"]
    assert submit(Request(COMMAND, tasks=2, array=True), "s") == ["17", "17"]
    array = ["sbatch --parsable --array=0-1 s 0", "sbatch --parsable --dependency=afterany:17 s"]
    assert notes(there) == ["sbatch --parsable s", *array]
    put(there / "refuse", "")
    with pytest.raises(ResourceError, match="sbatch failed: no such partition"):
        submit(Request(COMMAND), "s")


def test_no_slurm(there, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ResourceError, match="there is no sbatch on this machine"):
        submit(Request(COMMAND), "s")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(()), "'' is no job; it must be one of generate, score, classify"),
        (Request(("doctor",)), "'doctor' is no job"),
        (Request((*COMMAND, "--engine", "local")), "the script gives the command its --engine"),
        (Request((*COMMAND, "--grace=5")), "the script gives the command its --grace"),
        (Request(COMMAND, throttle=2), "the throttle limits the tasks of an array"),
        (Request(COMMAND, more=("comment=a\nb",)), "unusual characters"),
        (Request(COMMAND, launcher="srun; rm"), "unusual characters"),
        (Request(COMMAND, time="$(date)"), "unusual characters"),
    ],
)
def test_what_is_refused(request_, message):
    with pytest.raises(UsageError, match=message):
        script(request_)


JOB_OPTIONS = ("--model", "poet", "-i", "in.txt", "-o", "out.txt")


def ended(*arguments):
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code or 0


def test_the_verb(there, capsys):
    Path("in.txt").write_text("")
    for arguments in ([], ["--script", "s.sh"], ["--script", "s.sh", "--submit", "--array"]):
        assert ended("slurm", "-n", "4", *arguments, "generate", "-n", "10", *JOB_OPTIONS) == 0
        said, errors = capsys.readouterr()
        text = Path("s.sh").read_text() if arguments else said
        assert "tilewright generate -n 10 --model poet -i in.txt -o out.txt --grace 60)" in text
        assert ("ntasks=4" in text) != ("--array" in arguments) and not errors
    assert said == "Written to s.sh\nSubmitted: 17, 17\n"
    assert ended("slurm", "--submit", "generate", *JOB_OPTIONS) == 2
    assert "give --script FILE" in capsys.readouterr().err
    Path("refuse").touch()
    assert ended("slurm", "--script", "s.sh", "--submit", "generate", *JOB_OPTIONS) == 4
    Path("prompts.jsonl").write_text("{}")
    assert ended("slurm", "--script", "prompts.jsonl", "generate", *JOB_OPTIONS) == 2
    assert Path("prompts.jsonl").read_text() == "{}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*JOB_OPTIONS, "--modle", "critic"), "No such option: --modle"),
        (JOB_OPTIONS[2:], "Missing option '--model'"),
        ((*JOB_OPTIONS, "--batch-size", "many"), "Invalid value for '--batch-size'"),
        ((*JOB_OPTIONS[:-1], "s3://b/o.jsonl"), "`tilewright work s3://b/o.jsonl`"),
        (("--array", *JOB_OPTIONS[:-1], "s3://b/o.jsonl"), "a job array needs a local output, and the output is a URL"),
    ],
)
def test_a_command_that_the_script_could_not_run(there, capsys, options, message):
    array = ["--array"] if "--array" in options else []
    assert ended("slurm", *array, "classify", *(word for word in options if word != "--array")) == 2
    said, errors = capsys.readouterr()
    assert message in " ".join(errors.split()) and said == ""


def test_an_input_that_is_not_on_this_machine(there, capsys):
    """It may be on the cluster: the script is written, with a warning."""
    for name, warns in (("in.txt", True), ("s3://bucket/in.txt", False), ("/nowhere/*.txt", True), ("*b", False)):
        assert ended("slurm", "classify", "--model", "critic", "-i", name, "-o", "out.jsonl") == 0
        said, errors = capsys.readouterr()
        assert said.startswith("#!/bin/bash") and errors.startswith("Warning: the input /") == warns
