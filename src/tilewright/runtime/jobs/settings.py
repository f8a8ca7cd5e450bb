"""How a job is run: what every verb may be asked for, and what changes no result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The one record of it that the command line, jobs and engines share.

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

    engine: str | None = None
    workers: int | None = None
    shard_size: int | None = None
    max_errors: int | None = None
    restart: bool = False
    grace: float = 20  # batch systems kill 30 s after they have asked
    watchdog: float = 600  # seconds: many times a batch of the largest model
    trace: str | None = None
    part: tuple[int, int] | None = None
    keep_others: bool = False
    json: bool = False
    since: int | None = None

    @property
    def is_inline(self) -> bool:
        """Whether this process is the only worker."""
        return (self.engine or ("inline" if (self.workers or 1) == 1 else "local")) == "inline"
