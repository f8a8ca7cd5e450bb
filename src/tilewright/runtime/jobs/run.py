"""Runs a job from its options to its output. The same call resumes a job that was stopped, and does nothing for a
finished one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import msgspec

from tilewright.errors import InternalError, Interrupted, ResourceError, TilewrightError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import spelled
from tilewright.runtime.jobs import contents, made, trace
from tilewright.runtime.jobs.claims import Claims, in_order
from tilewright.runtime.jobs.cut import Cut
from tilewright.runtime.jobs.directory import CLAIMS, ENDED, REPORT, JobDirectory, Record
from tilewright.runtime.jobs.durable import Removed
from tilewright.runtime.jobs.earlier import Earlier
from tilewright.runtime.jobs.finished import Report, save_report
from tilewright.runtime.jobs.lease import Lease
from tilewright.runtime.jobs.manifest import Damaged, DamagedShards, Manifest, check_unchanged
from tilewright.runtime.jobs.merge import check, merge
from tilewright.runtime.jobs.metrics import metrics_of
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import note_end
from tilewright.runtime.jobs.stop import Stop, stopping
from tilewright.runtime.jobs.task import DOUBTED, OTHERS, Assembling, Engine, Job, Reading, Settling, Task, Watch
from tilewright.runtime.jobs.unchanged import AsBegun

MOST_SHARDS = 1_000_000  # they take 150 MB in the process that hands them out
REMOVED = 20  # the most times that another run may remove the job directory while this run starts
ROUNDS = 3  # of running missing shards and merging; if shards are damaged each time, the disk is at fault


def run(
    task: Task, output: str, engine: Engine, settings: Settings | None = None, watch: Watch | None = None
) -> Report:
    """Run the missing shards of a job and merge all shards. watch: gets the record of every shard, old ones first.

    Raises UsageError if the job was started with another fingerprint; InputError for an invalid input, or one that
    changes meanwhile; ResourceError if the system fails or another run holds the job; InternalError for more failed
    records than `max_errors`, or a shard that kills every worker; Interrupted if a signal stops the run. After an error
    an earlier output is unchanged, and the same call resumes the job.
    """
    with engine:
        return run_within(task, output, engine, settings, watch)


def run_within(
    task: Task,
    output: str,
    engine: Engine,
    settings: Settings | None = None,
    watch: Watch | None = None,
    request: bytes = b"",
) -> Report:
    """As `run`, but the caller has entered the engine's `with` block. request: the content of job.json."""
    settings = settings or Settings()
    if not engine.lead:
        return engine.follow(task, output, settings)
    with stopping() as stop:
        if isinstance(task, Assembling):
            task.check_outputs()
        else:
            AtomicFile(output).__enter__().discard()  # raises before the work if the output cannot be written
        began = AsBegun.of(task.files() if isinstance(task, Reading) else {})  # noted before they are read
        manifest = Manifest(fingerprint=task.fingerprint(), cut=check_cut(task.cut(settings.shard_size)))
        began = began.also(getattr(task, "trees", {}))
        began.check_before(settings.since)
        began.check()
        check_part(settings)
        check_retry(settings)
        with (
            _held(output, settings) as directory,
            nullcontext() if settings.part else _leaving_nothing(directory),
            metrics_of(directory, settings, watch or Watch()) as watching,
            _telling(work := _Run(task, directory, engine, settings, stop, watching)),
        ):
            earlier = work.earlier
            earlier.settle(shared=settings.part is not None)
            outputs = task.outputs() if isinstance(task, Assembling) else [directory.output]
            made.check_replaceable(directory, outputs, keep_others=settings.keep_others, beat=stop.check)
            with earlier.kept(put_back=engine.ends_workers) if settings.restart else nullcontext():
                work.is_settled = True
                work.request = request
                report = _worked(work, manifest, began)
    engine.tell(report)
    return report


def _worked(work: _Run, manifest: Manifest, began: AsBegun) -> Report:
    """Start or resume the job in a directory whose lease this run holds.

    Returns when the part or the whole job is finished.
    """
    task, directory, settings = work.task, work.directory, work.settings
    files = task.files() if isinstance(task, Reading) else {}
    touched = directory.begin(manifest, task.cut)
    if settings.part is None:  # else other parts may use these files
        directory.root.remove(ENDED)
        directory.root.remove(CLAIMS)
    contents.check_touched(directory, manifest, touched, files, work.stop.check)
    directory.began = began
    if touched:
        work.facts |= {"touched": touched}
    if settings.shard_size is not None and directory.manifest.cut != manifest.cut:
        work.facts |= {"shard_size": settings.shard_size}
    if settings.part and settings.part[0]:
        files = {}  # only part 0 hashes them
    work.began = manifest
    with trace.tracing(directory, settings.trace), contents.hashing(directory, files, work.engine.hashed):
        return work.part(*settings.part) if settings.part else work.until_whole()


@contextmanager
def _held(output: str, settings: Settings) -> Iterator[JobDirectory]:
    """Open the job's directory and take its lease.

    If another run, which had nothing to save, removes the directory meanwhile, it is made again.
    """
    for left in reversed(range(REMOVED)):
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(JobDirectory(output, make=True, at=settings.job_dir))
                stack.enter_context(Lease(directory, shared=settings.part is not None))
            except Removed:
                if not left:
                    raise
                continue
            yield directory
            return


def check_cut(cut: Cut) -> Cut:
    """Raises UsageError for more than MOST_SHARDS shards: the directory and the leading process could not hold them."""
    if cut.shards > MOST_SHARDS:
        raise UsageError(
            f"the input would become {cut.shards:,} shards; at most {MOST_SHARDS:,} are possible",
            remedy="give a larger --shard-size",
        )
    return cut


def check_part(settings: Settings) -> None:
    """Raises UsageError for an invalid --part, and for options that cannot be combined with it."""
    if settings.part is None:
        return
    number, count = settings.part
    if not 0 <= number < count:
        raise UsageError(f"part is {number}/{count}; parts are counted from 0 to {count - 1}")
    if settings.restart or settings.trace:
        what = "restart the job" if settings.restart else "be traced"
        raise UsageError(
            f"a part cannot {what}: others work on it, too", remedy="give that option to a run without --part"
        )


def check_retry(settings: Settings) -> None:
    """Raises UsageError if --retry-failed is combined with options or an engine that do not allow it."""
    if not settings.retry_failed:
        return
    if settings.restart or settings.part is not None:
        other = "--restart computes" if settings.restart else "--part computes"
        raise UsageError(f"--retry-failed computes some shards again, and {other} others", remedy="give one of them")
    if not settings.is_supervised:  # with MPI or inline, a record that kills its process would stop the job
        engine = settings.engine or "inline"
        raise UsageError(
            f"engine is {engine!r}; --retry-failed needs an engine that replaces workers that die",
            remedy="give --engine local or --engine ray",
        )


@contextmanager
def _leaving_nothing(directory: JobDirectory) -> Iterator[None]:
    """Within the block, an error before the first shard removes the job's directory."""
    try:
        yield
    except TilewrightError as error:
        with suppress(ResourceError):  # so that the first error is raised, not this one
            if directory.made and not isinstance(error, InternalError) and next(directory.committed(), None) is None:
                directory.remove()
        raise


@contextmanager
def _telling(work: _Run) -> Iterator[None]:
    """Within the block, Interrupted gets a message that also says what the job has saved."""
    try:
        yield
    except Interrupted as error:
        why = f"stopped by {error.value}" if error.value else error.message
        with suppress(ResourceError):  # then the message only names the signal
            error.message = f"{why}: {_kept(work)}"
        raise


def _kept(work: _Run) -> str:
    """The sentence about the saved shards of a job that was stopped."""
    directory = work.directory
    done, shards = work.engine.kept(directory), 0
    with suppress(Damaged):
        shards = directory.manifest.cut.shards
    if work.is_settled and work.settings.restart and not work.computed and not directory.made:
        return "nothing of the new run was whole yet, and what was done before is kept"
    if REPORT in directory.root.names():
        return "what the finished job has written was being checked, and is as it was"
    if not done:
        return "nothing was whole yet, so nothing was kept, and the output not written"
    of_all = f" of {shards:,}" if shards else ""
    count = "every shard is" if done == shards else f"{done:,}{of_all} shards {'is' if done == 1 else 'are'}"
    return f"{count} kept, and the output not written"


class _Run:
    """One run of a job. is_settled: files of earlier runs are cleaned up, and the output may be replaced."""

    def __init__(
        self, task: Task, directory: JobDirectory, engine: Engine, settings: Settings, stop: Stop, watch: Watch
    ) -> None:
        self.task, self.directory, self.engine = task, directory, engine
        self.settings, self.stop, self.watch = settings, stop, watch
        self.earlier, self.is_settled = Earlier(directory), False
        self.records = self.errors = self.computed = 0
        self.todo: list[int] = []
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.claims: Claims | None = None
        self.request = b""
        self.began: Manifest  # the manifest with the files' current times
        self.start = time.perf_counter()

    def until_whole(self) -> Report:
        self.watch.begin(self.directory.manifest.cut)
        if self.settings.retry_failed and next(self.directory.committed(), None) is None:
            why = "no shard of this job is computed yet, so no record has failed"
            raise UsageError(why, path=self.directory.path, remedy="leave out --retry-failed")
        finished = self.finished()
        if finished:
            return finished
        in_time = self.stop.late(self.settings.grace)
        for tries in range(ROUNDS):
            self.count_committed(self.watch if tries == 0 else Watch(), again=tries == 0)
            self.compute()
            begin = time.perf_counter()
            check_unchanged(self.began, self.task.fingerprint())
            try:
                self.settle(in_time)
                merged = merge(self.task, self.directory, in_time)
            except DamagedShards as error:
                for number in error.numbers:
                    self.directory.quarantine(number)
                continue
            self.phase("merge", begin)
            self.seconds["total"] = time.perf_counter() - self.start
            done = msgspec.structs.replace(merged, computed=self.computed, seconds=self.seconds, facts={**self.facts})
            self.directory.clean()
            return save_report(self.directory, done)
        raise InternalError(
            f"shards were damaged in each of {ROUNDS} tries; those of the last are in {self.directory.damaged.path}",
            path=self.directory.path,
            remedy="check the disk and the memory of this machine",
        )

    def part(self, number: int, count: int) -> Report:
        """Run the shards of a part. Its report counts only their records and is not saved."""
        self.watch.begin(self.directory.manifest.cut)
        self.count_committed(self.watch)
        if self.settings.helps:
            self.help(number, count)
        else:
            self.todo = [shard for shard in self.todo if shard % count == number]
            self.compute()
        check_unchanged(self.began, self.task.fingerprint())
        self.seconds["total"] = time.perf_counter() - self.start
        mine = range(number, self.directory.manifest.cut.shards, count)
        records = [record for shard in mine if (record := self.directory.record(shard))]
        return Report(
            manifest=self.directory.manifest.seal,
            output=spelled(os.path.basename(self.directory.output)),
            size=0,
            sha256="",
            records=sum(record.records for record in records),
            errors=sum(record.errors for record in records),
            shards=self.directory.manifest.cut.shards,
            computed=self.computed,
            seconds=self.seconds,
            facts={**self.facts},
        )

    def help(self, number: int, count: int) -> None:
        """Run the shards of a part, then shards of other parts that no process runs, until none is left."""
        with Claims(self.directory, (number, count)) as self.claims:
            while self.claims.any(todo := in_order(self.todo, (number, count))):
                self.todo = todo
                self.compute()
                self.todo = self.directory.missing()  # another part may have died and left a shard

    def finished(self) -> Report | None:
        """The report of a finished and intact job; else None. Damaged shards are moved aside."""
        if REPORT not in self.directory.root.names():
            return None
        found = check(self.directory, self.stop.check)
        others = [*map(spelled, self.task.outputs()[1:])] if isinstance(self.task, Assembling) else []
        if found.intact and [*(report := self.directory.sealed(REPORT, Report)).others] == others:
            doubted = report.figures.get(DOUBTED) and self.engine.watches
            if doubted or (report.errors and self.settings.retry_failed):
                return None  # the old report and output stay until this run replaces them
            self.count(report.records, report.errors)
            facts = {
                name: fact for name, fact in report.facts.items() if name not in ("touched", "shard_size", OTHERS)
            } | self.facts
            return msgspec.structs.replace(report, computed=0, seconds={}, facts=facts)  # {}: this run merges nothing
        for number in found.bad_shards:
            self.directory.quarantine(number)
        self.directory.root.remove(REPORT)
        return None

    def count_committed(self, watch: Watch, *, again: bool = False) -> None:
        """Pass the committed shards to `watch`, and list the missing ones in `todo`.

        again: shards with records that are tried again (`is_retried`) also get into `todo`. They stay committed until
        the new ones replace them.
        """
        begin = time.perf_counter()
        self.todo = self.directory.missing()
        self.records = self.errors = 0
        for number in self.directory.committed():
            record = self.directory.record(number)
            if record and again and self.is_retried(record):
                self.todo.append(number)
            elif record:
                watch.committed(record, None)
                self.count(record.records, record.errors)
        self.todo.sort()
        self.phase("plan", begin)

    def is_retried(self, record: Record) -> bool:
        """True if this shard of an earlier run has failed records that this run tries again."""
        if self.settings.retry_failed:
            return record.errors > 0
        return bool(record.figures.get(DOUBTED)) and self.engine.watches

    def compute(self) -> None:
        begin = time.perf_counter()
        self.directory.forget_lines()  # before workers and `settle` use the index
        if self.todo:
            self.directory.note_request(self.request)
            watch = self.watch
            job = Job(self.task, self.directory, self.settings, self.stop, self.todo, self.done, watch.at_work,
                      watch.waiting, other=self.other)  # fmt: skip
            if self.claims:
                job.claim = self.claims.take
            self.engine.run(job)
            self.facts |= job.facts
        self.directory.sync()
        self.earlier.forget()
        self.phase("run", begin)

    def settle(self, stop: Stop) -> None:
        if isinstance(self.task, Settling):
            self.task.settle(self.directory, stop)
            self.count_committed(Watch())  # counts the errors again: `settle` may have added some

    def done(self, record: Record, worker: int) -> None:
        self.computed += 1
        if self.claims:
            self.claims.release(record.shard)
        self.earlier.forget()
        self.watch.committed(record, worker)
        self.count(record.records, record.errors)

    def other(self, record: Record) -> None:
        self.facts[OTHERS] = self.facts.get(OTHERS, 0) + 1
        self.earlier.forget()
        self.watch.committed(record, None)
        self.count(record.records, record.errors)

    def count(self, records: int, errors: int) -> None:
        self.records += records
        self.errors += errors
        allowed = self.settings.max_errors
        if allowed is not None and self.errors > allowed:
            first = next(iter(self.directory.first_errors(1)), "not known any more")
            why = f"{self.errors:,} of the first {self.records:,} records are bad and {allowed:,} are allowed"
            note_end(self.directory, f"{why}; the first is {first}")
            raise InternalError(
                f"{why}; the first is {first}",
                path=self.directory.errors.path,
                remedy="allow more (--max-errors) and run again: complete shards are reused; or correct them, and give "
                "--restart",
            )

    def phase(self, name: str, begin: float) -> None:
        end = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + end - begin
        trace.note(name, begin, end)
