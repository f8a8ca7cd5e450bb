"""Two jobs without a model - numbers squared, lines in upper case - whose records crash, hang or dawdle on order."""

import os
import signal
import time
from dataclasses import dataclass, field, replace

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.runtime.jobs import durable
from tilewright.runtime.jobs.cut import Lines, Records
from tilewright.runtime.jobs.manifest import file_identity
from tilewright.runtime.jobs.task import Watch

WIDTH = 4  # bytes of a number


@dataclass
class Knobs:
    """What changes no result. trouble: record -> (what, how often); told apart by files in `notes`, which also gets a
    line for each shard that is begun. slow: seconds a record; slowest: the number of a worker that takes ten times as
    long. die_at: (label, name) of a step of a commit at which the process ends.
    """

    notes: str = ""
    trouble: dict[int, tuple[str, int]] = field(default_factory=dict)
    slow: float = 0.0
    slowest: int = -1
    die_at: tuple[str, str] = ("", "")

    def enter(self) -> None:
        """In the worker's process."""
        if self.die_at[0]:
            durable.step = lambda label, name: os._exit(77) if (label, name) == self.die_at else None

    def note(self, text: str) -> None:
        """One more line, whole, whoever else writes."""
        if self.notes:
            fd = os.open(os.path.join(self.notes, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, f"{text}\n".encode())
            os.close(fd)

    def again(self, record: int, most: int) -> bool:
        """Whether this record has caused trouble less often than it shall."""
        for i in range(most):
            try:
                os.close(os.open(os.path.join(self.notes, f"{record}.{i}"), os.O_CREAT | os.O_EXCL))
                return True
            except FileExistsError:
                pass
        return False

    def meet(self, record: int, worker: int) -> None:
        """What happens as a record comes."""
        if self.slow:
            time.sleep(self.slow * (10 if worker == self.slowest else 1))
        what, times = self.trouble.get(record, ("", 0))
        if not what or not self.again(record, times):
            return
        if what == "exit":
            os._exit(3)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while what == "wait" and not os.path.exists(os.path.join(self.notes, "go")):
            time.sleep(0.01)
        if what == "wait":
            return
        if what == "hang":
            time.sleep(3600)
        if what == "raise":
            raise ZeroDivisionError(f"record {record}")
        raise InputError("is not to my taste", path="in.bin", where=f"record {record}")


@dataclass
class Squares:
    """uint32 numbers -> their squares as uint64; with `npy`, in a .npy file."""

    input: str
    seed: int = 0
    npy: bool = False
    knobs: Knobs = field(default_factory=Knobs)

    def fingerprint(self):
        return {"verb": "squares", "seed": self.seed, "npy": self.npy, **file_identity("input", self.input)}

    def files(self):
        return {"input": self.input}

    def cut(self, shard_size):
        return Records(WIDTH, os.path.getsize(self.input) // WIDTH, shard_size or 4)

    def open(self, place):
        return SquaresWorker(self, place)

    def header(self, totals):
        if not self.npy:
            return b""
        import numpy as np

        from tilewright.formats.npy import header_bytes

        return header_bytes((totals.records - totals.errors,), np.dtype("<u8"))


class SquaresWorker:
    """A record that has ended its worker too often is an error, and has no square."""

    def __init__(self, task, place):
        task.knobs.enter()
        self.task, self.place, self.file = task, place, InputFile(task.input, "input")

    def run(self, shard, out, beat):
        self.task.knobs.note(f"{shard.number} {os.getpid()} {self.place.number}")
        skip = dict(shard.skip)
        for row, place in zip(shard.rows, range(shard.offset, 1 << 62, WIDTH), strict=False):
            if row in skip:
                from tilewright.formats.records import RecordError

                out.error(RecordError(row, "", skip[row]))
                continue
            beat.at(row) if shard.alone else beat()
            self.task.knobs.meet(row, self.place.number)
            number = bytearray(WIDTH)
            self.file.read_into(number, place)
            value = int.from_bytes(number, "little")
            out.write((value * value + self.task.seed).to_bytes(8, "little"))
        return len(shard.rows)

    def close(self):
        self.file.close()


@dataclass
class Upper:
    """Lines -> "number LINE"; a line that says "bad" is an error, and the output says so."""

    input: str
    knobs: Knobs = field(default_factory=Knobs)

    def fingerprint(self):
        return {"verb": "upper", **file_identity("input", self.input)}

    def files(self):
        return {"input": self.input}

    def cut(self, shard_size):
        return Lines(os.path.getsize(self.input), shard_size or 64)

    def open(self, place):
        return UpperWorker(self, place)

    def header(self, totals):
        return f"# {totals.records} lines, {totals.errors} bad\n".encode()


class UpperWorker:
    """See Upper."""

    def __init__(self, task, place):
        task.knobs.enter()
        self.task, self.place, self.file = task, place, InputFile(task.input, "input")

    def run(self, shard, out, beat):
        from tilewright.formats.records import RecordError

        self.task.knobs.note(f"{shard.number} {os.getpid()} {self.place.number}")
        records = 0
        for number, line, _ in shard.lines(self.file):
            beat()
            self.task.knobs.meet(number, self.place.number)
            records += 1
            if line is None or line == b"bad":
                out.error(RecordError(number, "", "is bad" if line else "is too long"))
                line = b"!"
            out.write(b"%d %s\n" % (number, line.upper()))
        return records

    def close(self):
        self.file.close()


def numbers(path, count):
    """Writes `count` numbers; returns what their squares are."""
    values = [(i * 2654435761 + 12345) % (1 << 32) for i in range(count)]
    with open(path, "wb") as file:
        file.write(b"".join(value.to_bytes(WIDTH, "little") for value in values))
    return b"".join((value * value).to_bytes(8, "little") for value in values)


class Startless(Squares):
    """Has no model."""

    def open(self, place):
        raise RuntimeError("no model")


@dataclass
class Moody(Squares):
    """While `bad` is set, record 5 fails."""

    bad: bool = True

    def open(self, place):
        return MoodyWorker(self, place)


class MoodyWorker(SquaresWorker):
    """See Moody."""

    def run(self, shard, out, beat):
        return super().run(replace(shard, skip=((5, "bad"),)) if self.task.bad else shard, out, beat)


class Elsewhere(Squares):
    """Was begun with a CPU that no node has."""

    def fingerprint(self):
        return {**super().fingerprint(), "device": "cpu, 0 lanes"}


class Looking(Squares):
    """Says where its worker runs."""

    def open(self, place):
        return LookingWorker(place)


class LookingWorker:
    """See Looking."""

    def __init__(self, place):
        self.place = place

    def run(self, shard, out, beat):
        import json

        from tilewright.ops.core.launch import thread_count

        cores = sorted(os.sched_getaffinity(0))
        said = {"worker": self.place.number, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "cores": cores}
        said |= {"threads": thread_count(), "parent": os.getppid()}
        out.write(json.dumps(said).encode() + b"\n")
        time.sleep(0.3)  # so that the other one gets the other shard
        return len(shard.rows)

    def close(self):
        """Nothing is open."""


class Seen(Watch):
    """Hands on the record of every committed shard."""

    def __init__(self, call):
        self.committed = lambda record, worker: call(record)


def run_by_url(task, url, engine, settings):
    """As `run`, for an output in a store."""
    from tilewright.runtime.stores.lead import run_at
    from tilewright.runtime.stores.stage import staged

    with staged(url) as output, engine:
        return run_at(url, task, output, engine, settings, Watch())


def work_on(task, output, engine, settings):
    """As `stores.work.work`, for a job that has begun, in a directory or in a store; returns what the worker did."""
    from contextlib import nullcontext

    from tilewright.runtime.jobs.stop import stopping
    from tilewright.runtime.stores import work
    from tilewright.runtime.stores.stage import staged

    staging = staged(output) if "://" in output else nullcontext(output)
    with staging as output, stopping() as stop, work.opened(output) as place, engine:
        return work.work_at(place, task, engine, settings, stop)


def orderly_main(notes, aborted):
    """`main` of a rank that exits with the code `aborted` instead of calling MPI_Abort. It notes in `order` in `notes`
    when it has written on stderr, which takes long, and when it exits.
    """
    import atexit
    import sys

    from tilewright.runtime.engines.mpi import Mpi

    def note(what):
        fd = os.open(os.path.join(notes, "order"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{what}\n".encode())
        os.close(fd)

    class Slow:
        def write(self, text):
            time.sleep(0.3)
            os.write(2, text.encode())
            note("wrote")

        def flush(self):
            """Nothing is buffered."""

        def fileno(self):
            return 2

    sys.stderr = Slow()
    Mpi._end = lambda self, code: os._exit(aborted)
    atexit.register(note, "exits")  # runs after the handlers that are registered later
    main()


def main() -> None:
    """`python -c "import toy_jobs; toy_jobs.main()" '{"task": ..., "output": ..., ...}'`: a job in its own process."""
    import json
    import resource
    import sys

    from tilewright.errors import TilewrightError
    from tilewright.runtime.engines.inline import Inline
    from tilewright.runtime.engines.local import Local
    from tilewright.runtime.engines.mpi import Mpi
    from tilewright.runtime.engines.ray import Ray
    from tilewright.runtime.jobs.run import run
    from tilewright.runtime.jobs.settings import Settings

    signal.signal(signal.SIGINT, signal.default_int_handler)  # however the tests were started: nohup and & ignore them
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    said = json.loads(sys.argv[1])
    knobs = said.get("knobs", {})
    knobs["trouble"] = {int(record): tuple(what) for record, what in knobs.get("trouble", {}).items()}
    kinds = {"squares": Squares, "upper": Upper, "looking": Looking}
    task = kinds[said.get("task", "squares")](said["input"], knobs=Knobs(**knobs))
    engines = {"inline": Inline, "mpi": Mpi, "mpi on GPUs": lambda: Mpi(gpu=True), "ray": lambda: Ray(2)}
    engine = engines.get(said["engine"], lambda: Local(said["engine"]))()
    options = Settings(**said.get("options", {}))
    try:
        if said.get("joins"):
            worked = work_on(task, said["output"], engine, options)
            print(json.dumps(vars(worked)))
            sys.exit(worked.exit_code)
        if said.get("joinable"):
            from tilewright.runtime.stores.joinable import Joinable

            engine = Joinable(engine)
        report = (
            run_by_url(task, said["output"], engine, options)
            if "://" in said["output"]
            else run(task, said["output"], engine, options)
        )
    except TilewrightError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    sys.stdout.write(json.dumps({"computed": report.computed, "peak": peak, "workers": workers}) + "\n")
    sys.exit(report.errors > 0)
