"""Compare the speed and the bits of two versions of the project, in alternation on one machine.

    python tests/tools/paired.py HEAD~1 . --op matmul,conv3d             # the rung that is chosen, at every bench size
    python tests/tools/paired.py HEAD~1 . --op all --rungs every --csv rungs.csv
    python tests/tools/paired.py HEAD~1 . --job "classify --model critic -i reviews.txt -o {out}"

A version is a commit or a directory with a checkout. Each one runs in processes of its own with caches of its own, for
kernels and for Python's bytecode. An operation's two processes live through all rounds; in each round both time the
same call once, in random order. A job is run whole, also in random order. A ratio is the median over rounds of `before
/ after`: above 1, the second version is faster. The exit code is 1 if any result differs in its bits, or a ratio is
below --least.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pair:
    """One comparison. ratio, low, high: median, 10th and 90th percentile over rounds of before_s / after_s."""

    what: str
    case: str
    rung: str
    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    same_bits: bool

    def __str__(self) -> str:
        spread = f"{self.ratio:6.3f} ({self.low:.3f} to {self.high:.3f})  {self.after_s * 1e3:10.3f} ms"
        return f"{spread}  {self.what} {self.case} {self.rung}{'' if self.same_bits else '  OTHER BITS'}"

    @classmethod
    def of(cls, what: str, case: str, rung: str, rounds: list[tuple[float, float]], same_bits: bool) -> Pair:
        """The comparison of rounds of (seconds before, seconds after)."""
        ratios = sorted(before / after for before, after in rounds)
        low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.9))
        before, after = (statistics.median(column) for column in zip(*rounds, strict=True))
        return cls(what, case, rung, before, after, statistics.median(ratios), low, high, same_bits)


class Version:
    """A checkout and its environment. `ask` talks to a child process that times the operations of this version."""

    def __init__(self, tree: Path, scratch: Path):
        self.tree = tree
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "TILEWRIGHT_CACHE": str(scratch / "cache"),
            "TRITON_CACHE_DIR": str(scratch / "triton"),
            "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        self._child: subprocess.Popen[str] | None = None

    def ask(self, **question: Any) -> Any:
        """The child's answer. Raises RuntimeError if it stopped."""
        if self._child is None:
            own = self.tree / "tests/tools/paired.py"  # it knows where its version keeps things
            command = [sys.executable, str(own if own.exists() else __file__), "--serve"]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
            )
        assert self._child.stdin and self._child.stdout
        print(json.dumps(question), file=self._child.stdin, flush=True)
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.tree}: the process that times its operations stopped; stderr says why")
        return json.loads(answer)

    def run(self, job: str, out: Path) -> tuple[float, str]:
        """Seconds and the SHA-256 of the output of `tilewright JOB`, with {out} replaced. Raises RuntimeError."""
        words = [word.replace("{out}", str(out)) for word in shlex.split(job)]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *words], env=self.environment, capture_output=True, text=True
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"{self.tree}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return seconds, _digest(out)

    def close(self) -> None:
        """Stop the child."""
        if self._child and self._child.stdin:
            self._child.stdin.close()
            self._child.wait()


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of a directory's files and their names."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\n".encode() if path.is_dir() else b"")
            digest.update(file.read_bytes())
    return digest.hexdigest()


def compare_operations(versions: list[Version], options: argparse.Namespace) -> Iterator[Pair]:
    """One Pair for each bench case of each operation (and each rung, with --rungs every)."""
    operations = versions[0].ask(do="operations") if options.op == "all" else options.op.split(",")
    order = random.Random(0)
    for op in operations:
        cases = [version.ask(do="cases", op=op, device=options.device) for version in versions]
        for case in (name for name in cases[0] if name in cases[1] and options.label in name):
            at = {"op": op, "case": case, "device": options.device, "threads": options.threads}
            rungs = [version.ask(do="rungs", **at) for version in versions]
            every = [name for name in rungs[0]["accepting"] if name in rungs[1]["accepting"]]
            for rung in every if options.rungs == "every" else [None]:
                bits = [version.ask(do="bind", rung=rung, **at) for version in versions]
                rounds = []
                for turn in range(1 + options.rounds):
                    seconds = [0.0, 0.0]
                    for index in order.sample((0, 1), 2):
                        seconds[index] = versions[index].ask(do="time")
                    if turn:  # the first one warms up
                        rounds.append((seconds[0], seconds[1]))
                chosen = " -> ".join(dict.fromkeys(found["chosen"] for found in rungs))
                yield Pair.of(op, case, rung or chosen, rounds, bits[0] == bits[1])


def compare_job(versions: list[Version], options: argparse.Namespace, folder: Path) -> Iterator[Pair]:
    """One Pair for a command; the first run of each version, which compiles, is not counted."""
    order, rounds, digests = random.Random(0), [], set()
    for turn in range(1 + options.rounds):
        seconds = [0.0, 0.0]
        for index in order.sample((0, 1), 2):
            place = Path(tempfile.mkdtemp(dir=folder))
            seconds[index], digest = versions[index].run(options.job, place / options.out)
            digests.add(digest)
        if turn:
            rounds.append((seconds[0], seconds[1]))
    yield Pair.of("job", options.job, "", rounds, len(digests) == 1)


@contextmanager
def checkout(version: str, scratch: Path) -> Iterator[Path]:
    """The directory of a version; a commit is checked out into `scratch` and removed at the end."""
    if Path(version).is_dir():
        yield Path(version).resolve()
        return
    tree = scratch / "tree"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), version], check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


class Server:
    """The child's side: binds one call of this version's operation at a time and times it on request."""

    def operations(self) -> list[str]:
        """Names of all operations."""
        from tilewright.ops.core.ladder import operations

        return list(operations())

    def cases(self, op: str, device: str) -> list[str]:
        """Names of the bench cases of an operation on a device; none where it has no kernels for it."""
        return list(self._cases(op, device))

    def rungs(self, op: str, case: str, device: str, threads: int) -> dict[str, Any]:
        """The rung that is chosen for a case, and all that accept it."""
        from tilewright.bench.climb import parts

        ladder, problem = parts(op)[0], self._cases(op, device)[case].problem
        accepting = [name for name, rung in ladder.rungs.items() if not rung.refuses(problem)]
        return {"chosen": ladder.choose(problem).name, "accepting": accepting}

    def bind(self, op: str, case: str, device: str, threads: int, rung: str | None) -> str:
        """Prepare a call with fixed inputs; returns the SHA-256 of its result."""
        import numpy as np

        from tilewright.bench.climb import parts
        from tilewright.bench.clocks.cpu import CpuClock
        from tilewright.bench.clocks.cuda import CudaClock
        from tilewright.bench.measure import SEED
        from tilewright.ops.core.ladder import using
        from tilewright.ops.core.launch import threads as on_threads

        spec, chosen, self.gpu = parts(op)[1], self._cases(op, device)[case], device != "cpu"
        forced = {op: rung} if rung else {}
        inputs = spec.make(chosen, np.random.default_rng(SEED))
        with using(**forced), on_threads(threads):
            if self.gpu:
                bound = spec.bind_tensors(chosen, inputs, device)
            else:
                bound = spec.bind(chosen, inputs)

        def call() -> Any:
            with using(**forced), on_threads(threads):
                return bound()

        self.clock = CudaClock() if self.gpu else CpuClock()
        self.call, result = call, call()
        values = result.float().cpu().numpy() if self.gpu else np.asarray(result)
        return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()

    def time(self) -> float:
        """Seconds of one call with cold caches."""
        from tilewright.bench.measure import interleave

        return interleave({"call": self.call}, self.clock, runs=1, warm_up=int(self.gpu))["call"].median_s

    def _cases(self, op: str, device: str) -> dict[str, Any]:
        from tilewright.bench.climb import parts

        spec = parts(op)[1]
        if device == "cpu":
            return {case.name: case for case in spec.sizes()}
        return {case.name: case for case in spec.device_sizes()} if hasattr(spec, "device_sizes") else {}


def serve() -> None:
    """Answer questions on stdin, one JSON object a line, on what was stdout; prints of others go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        question = json.loads(line)
        answer = getattr(server, question.pop("do"))(**question)
        print(json.dumps(answer), file=answers, flush=True)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit, or a directory with a checkout")
    parser.add_argument("after")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--op", help="operations, comma separated, or all")
    kind.add_argument("--job", help="a command of tilewright without the word tilewright; {out} is its output")
    parser.add_argument("--out", default="out.bin", help="the output's file name, for --job")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rungs", choices=("chosen", "every"), default="chosen")
    parser.add_argument("--label", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--least", type=float, default=0.0, help="the smallest ratio that is no failure")
    parser.add_argument("--csv", help="also write the rows to this file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print one line per comparison, then the geometric mean; write them to --csv. Returns the exit code."""
    options, pairs = parsed(arguments), []
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("before", "after")]
        with checkout(options.before, places[0]) as before, checkout(options.after, places[1]) as after:
            versions = [Version(tree, place) for tree, place in zip((before, after), places, strict=True)]
            try:
                if options.op:
                    found = compare_operations(versions, options)
                else:
                    found = compare_job(versions, options, Path(folder))
                for pair in found:
                    pairs.append(pair)
                    print(pair, flush=True)
            finally:
                for version in versions:
                    version.close()
    if not pairs:
        print("nothing to compare")
        return 2
    mean = math.exp(statistics.fmean(math.log(pair.ratio) for pair in pairs))
    lowest, others = min(pair.ratio for pair in pairs), sum(not pair.same_bits for pair in pairs)
    print(f"{mean:6.3f} geometric mean of {len(pairs)}; lowest {lowest:.3f}; {others} with other bits")
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, [*asdict(pairs[0])])
            writer.writeheader()
            writer.writerows(map(asdict, pairs))
    return int(others > 0 or lowest < options.least)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
