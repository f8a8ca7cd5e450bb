"""The rate of a job is that of a similar job beside its output; other directories are passed over."""

from tilewright.formats.records import RecordError
from tilewright.runtime.jobs.cut import Records
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.manifest import Manifest
from tilewright.runtime.trials import Trial, trial_for

FIELDS = {
    "verb": "draw",
    "dtype": "float32",
    "device": "cpu, 16 lanes",
    "model.x.bytes": 5,
    "model.x.changed": 7,
    "seed": 1,
}


def job(output, records, errors=0, **fields):
    """A job of these records and fields, with one committed shard. errors: its bad records."""
    with JobDirectory(str(output), make=True) as directory:
        directory.begin(Manifest(fingerprint=FIELDS | fields, cut=Records(0, records, records)), None)
        with directory.attempt(0) as attempt:
            attempt.write(b"x")
            for number in range(errors):
                attempt.error(RecordError(number + 1, "", "bad"))
            attempt.commit(records)


def test_the_similar_job_with_the_longest_measurement(tmp_path):
    assert trial_for(FIELDS, str(tmp_path / "out.npy")) is None
    (tmp_path / "empty.job").mkdir()
    (tmp_path / "file.job").write_text("")
    job(tmp_path / "other.npy", 4, dtype="bfloat16")
    job(tmp_path / "model.npy", 4, **{"model.x.bytes": 6})
    assert trial_for(FIELDS, str(tmp_path / "out.npy")) is None
    job(tmp_path / "bad.npy", 4, errors=4)
    assert trial_for(FIELDS, str(tmp_path / "out.npy")) is None
    job(tmp_path / "try.npy", 20, seed=2, **{"model.x.changed": 8})
    found = trial_for(FIELDS, str(tmp_path / "out.npy"))
    assert found.records == 20 and found.seconds > 0 and found.is_short and not Trial("", 20, 1.0).is_short
    assert found.path == str(tmp_path / "try.npy.job")


def test_a_job_that_chooses_tokens_in_another_way_is_not_similar(tmp_path):
    """Greedy tokens, sampled ones and log-probabilities take different times."""
    fields = FIELDS | {"verb": "generate", "sampling.temperature": 1.0, "sampling.logprobs": None, "sampling.seed": 1}
    job(tmp_path / "greedy.npy", 20, **(fields | {"sampling.temperature": 0.0}))
    job(tmp_path / "logprobs.npy", 20, **(fields | {"sampling.logprobs": 5}))
    assert trial_for(fields, str(tmp_path / "out.npy")) is None
    job(tmp_path / "try.npy", 20, **(fields | {"sampling.seed": 2}))
    assert trial_for(fields, str(tmp_path / "out.npy")).path == str(tmp_path / "try.npy.job")
