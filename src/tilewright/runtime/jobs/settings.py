"""The settings of a job, shared by the command line, the jobs and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.errors import UsageError
from tilewright.switches import Without


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of every verb. Only device, dtype, rungs and without can change results.

    device: "cpu", "cuda" or "auto". dtype: accuracy class; None: float32, for `convolve` as the input needs. threads:
    of CPU kernels; None: one per core. rungs: the kernel that is forced, by operation or by layer ("matmul@2").
    without: optimisations that are switched off, of `switches.OPTIMISATIONS`. batch_size: records per call of the
    model; None: the verb's own.
    engine: of `start.ENGINES`; None: inline for one worker, local for several. workers: processes; None: one, with
    engine "local" one per GPU. shard_size: records or bytes per shard of a new job, as the input is cut; None: the
    verb's own. max_errors: records that may fail, None: any number. restart: throw away what was done. grace: seconds
    from a signal to the end. watchdog: seconds without a sign of life after which a worker is replaced. trace: where to
    write a Chrome trace. part: (k, n), only every n-th shard from k on, and no output: for n processes that share a job
    without knowing of each other; the output is made by a run of all. keep_others: refuse to replace a file at the
    output's name that this job has not made. json: a verb with --json, whose stdout gets an error as JSON where native
    code ends the process. since: when the command began (ns since 1970); what the job reads must be older, as it was
    read before the job began.
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
    keep_others: bool = False
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
        """True if a process that computes nothing hands out the shards."""
        return not self.is_inline and self.engine != "mpi"
