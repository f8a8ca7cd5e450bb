"""The command line in processes that start in milliseconds: forked from one that has loaded all of it and run it once.

`python -c "import forked_verbs; forked_verbs.main()" WARM...` reads a JSON line a command, {"argv", "after", "signal",
"victim"}: the verb runs in a process group of its own. The signal is sent `after` seconds later; one that can be
handled, from when it is. It goes to the victim: "group"; "lead", the verb's own process alone; "worker", one of its
children. It answers with the exit status, as `os.waitstatus_to_exitcode` has it, and the seconds that it took to end
after the signal. By then all processes of the group have ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import tilewright

PATIENCE = 600.0  # seconds for a job and its workers to end; far more than a loaded machine takes
PATHS = [str(Path(tilewright.__file__).parents[1]), str(Path(__file__).parent)]


class Forked:
    """The parent of those processes. warm: commands that are run first, one after the other, in the parent itself. log:
    a file in the folder for what all of them say."""

    def __init__(self, folder, *warm, log="forked.log"):
        self.log = open(folder / log, "w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import forked_verbs; forked_verbs.main()", *map(json.dumps, warm)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip

    def __call__(self, *argv, after=None, number=signal.SIGKILL, victim="group"):
        """(exit status, seconds from the signal to the end); after: seconds until it is sent, None: never."""
        said = {"argv": list(map(str, argv)), "after": after, "signal": number, "victim": victim}
        self.process.stdin.write(json.dumps(said) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.said()
        return tuple(json.loads(answer))

    def said(self):
        """All that the commands have written."""
        self.log.seek(0)
        return self.log.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.log.close()


def main():
    from tilewright.cli import main as cli

    os.fsync = os.fstat  # only a power cut tells the difference
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for warm in sys.argv[1:]:
        try:
            cli(json.loads(warm))
        except SystemExit as end:
            assert end.code in (None, 0, 1), end.code  # 1: with bad records
    for line in sys.stdin:
        said = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(cli, said["argv"])
        answers.write(json.dumps(_watched(child, said["after"], said["signal"], said["victim"])) + "\n")
        answers.flush()


def _become(cli, argv):
    """The verb; never returns."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # however the tests were started
    try:
        cli(argv)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code or 0)
    finally:
        os._exit(99)


def _begun(child):
    """Whether the job handles signals by now: Python itself has no handler for SIGTERM."""
    status = Path(f"/proc/{child}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def _members(group):
    """PIDs of the group's processes that have not ended."""
    found = []
    for one in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, of = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[:3]
            if state not in "ZX" and int(of) == group:
                found.append(int(one))
    return found


def _kill(child, number, victim):
    """False if there is no such process."""
    if victim == "group":
        os.killpg(child, number)
        return True
    chosen = child if victim == "lead" else next((one for one in _members(child) if one != child), None)
    if chosen:
        with contextlib.suppress(ProcessLookupError):  # a worker that has ended by itself
            os.kill(chosen, number)
    return chosen is not None


def _watched(child, after, number, victim):
    with contextlib.suppress(OSError):  # it has done so itself
        os.setpgid(child, child)
    begun = None  # when it could be sent the signal
    while after is not None:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), 0.0
        if number != signal.SIGKILL and not _begun(child):
            begun = None
        elif begun is None:
            begun = time.monotonic()
        elif time.monotonic() >= begun + after:
            if _kill(child, number, victim):
                break
            after += 0.01  # no worker is there yet
        time.sleep(0.001)
    sent = time.monotonic()
    status = os.waitpid(child, 0)[1]
    while left := _members(child):  # its workers, if they are slower
        assert time.monotonic() < sent + PATIENCE, f"processes {left} are left"
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(status), time.monotonic() - sent
