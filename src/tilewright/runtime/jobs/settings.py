"""The settings of a job, shared by the command line, the jobs and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.errors import UsageError
from tilewright.switches import Without


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options that all verbs share. Only device, dtype, rungs and without can change results.

    device: "cpu", "cuda" or "auto". dtype: accuracy class; None: float32, or for `convolve` the dtype that suits the
    input. threads: of CPU kernels; None: one per core. rungs: the forced kernel of each operation or layer
    ("matmul@2"). without: the optimisations of `switches.OPTIMISATIONS` that are switched off. batch_size: records per
    call of the model; None: the verb's default. engine: one of `start.ENGINES`; None: inline for one worker, local for
    several. workers: processes; None: one, with engine "local" one per GPU. shard_size: records or bytes per shard of a
    new job, depending on the input's format; None: the verb's default. max_errors: records that may fail; None: any
    number. restart: discard earlier shards. grace: seconds that a job has to stop after a signal. watchdog: seconds
    without a response after which a worker is replaced. trace: where to write a Chrome trace. part: (k, n): run
    only every n-th shard from k on, and write no output. So n processes share a job without communicating; a later run
    without `part` writes the output. helps: a part also runs shards of other parts that no process runs. keep_others:
    refuse to replace a file at the output's name that this job has not made. job_dir: the directory for the job's
    state; None: that of an earlier run, or OUT.job. shared_files: with MPI, whether all nodes see the job's files:
    "yes", "no" (only rank 0's does) or "auto" (found out). json: with --json, an error is also written to stdout as
    JSON, even if native code stops the process. since: when the command began (ns since 1970). A file that was changed
    later is refused, because parts of it may have been read before the job began.
    """

    device: str = "cpu"
    dtype: str | None = None
    threads: int | None = None
    rungs: Mapping[str, str] = field(default_factory=dict)
    without: Without = frozenset()
    batch_size: int | None = None
    engine: str | None = None
    workers: int | None = None
    shard_size: int | None = None
    max_errors: int | None = None
    restart: bool = False
    retry_failed: bool = False
    grace: float = 20  # batch systems kill 30 s after they have asked
    watchdog: float = 600  # seconds: many times a batch of the largest model
    trace: str | None = None
    part: tuple[int, int] | None = None
    helps: bool = False
    keep_others: bool = False
    job_dir: str | None = None
    shared_files: str = "auto"
    json: bool = False
    since: int | None = None

    def __post_init__(self) -> None:
        if self.shard_size is not None and self.shard_size < 1:
            raise UsageError(parameter="shard_size", value=str(self.shard_size), rule="a shard has at least 1 record, "
                             "byte or plane", remedy="give 1 or more, or None for the verb's own size")  # fmt: skip

    @property
    def is_inline(self) -> bool:
        """True if this process is the only worker."""
        return (self.engine or ("inline" if (self.workers or 1) == 1 else "local")) == "inline"

    @property
    def is_supervised(self) -> bool:
        """True if a separate process, which computes nothing, hands out the shards."""
        return not self.is_inline and self.engine != "mpi"
