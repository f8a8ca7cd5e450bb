"""What a worker opens is what the fingerprint names: the output is the fingerprint's, or there is none.

Each file that a verb reads is edited, replaced, cut short, removed or made while the job is at work, and put back with
its times before anybody checks them.
"""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from tilewright.errors import InputError, TilewrightError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import run as run_module
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Place
from tilewright.runtime.jobs.unchanged import AsBegun, Tree
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.classify import task as classify_module
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.convolve import worker as convolve_worker
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.draw import task as draw_module
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.generate import task as generate_module

WAYS = ("edit", "replace", "cut", "remove")
MOMENTS = ("open", "shard", "later")
WORKERS = {
    "classify": classify_module.ClassifyWorker,
    "generate": generate_module.GenerateWorker,
    "draw": draw_module.DrawWorker,
    "convolve": convolve_worker.ConvolveWorker,
    "zarr": convolve_worker.ConvolveWorker,
    "zarr 2": convolve_worker.ConvolveWorker,
    "linked": convolve_worker.ConvolveWorker,
}
FILES = {
    "classify": ("classify.jsonl", "textcnn/config.json", "textcnn/model.safetensors", "textcnn/tokenizer.json"),
    "generate": ("generate.jsonl", "gpt2/config.json", "gpt2/model.safetensors", "gpt2/tokenizer.json",
                 "gpt2/generation_config.json"),
    "draw": ("noise.npy", "dcgan/config.json", "dcgan/model.safetensors"),
    "convolve": ("v.npy", "k.npy"),
    "zarr": ("v.zarr/zarr.json", "v.zarr/c/1/0/0", "v.zarr/c/2/1/1", "v.zarr/c/3/0/1", "k.npy"),
    "zarr 2": ("v2.zarr/.zarray", "v2.zarr/.zattrs", "v2.zarr/1.0.0", "v2.zarr/3.0.1"),
    "linked": ("linked.zarr/c/1/0/0", "linked.zarr/c/3/0/1"),
}  # fmt: skip
CASES = [(verb, file) for verb in FILES for file in FILES[verb]]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, verbs, rng):
    """Copies of all models and inputs."""
    shutil.copytree(verbs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    init_dcgan("dcgan", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    np.save("noise.npy", rng.standard_normal((10, 3), np.float32))
    volume = rng.standard_normal((16, 8, 8), np.float32)
    np.save("v.npy", volume)
    np.save("k.npy", rng.standard_normal((3, 3, 3)))
    for version in (2, 3):
        name = "v.zarr" if version == 3 else "v2.zarr"
        array = zarr.create_array(name, shape=volume.shape, chunks=(4, 4, 4), dtype="f4", zarr_format=version)
        array[:] = volume
    array[8:12, 4:, 4:] = 0
    shutil.rmtree("v.zarr/c/2/1/1", ignore_errors=True)
    if os.path.exists("v.zarr/c/2/1/1"):
        os.remove("v.zarr/c/2/1/1")  # a chunk of zeros, which may come into being
    shutil.copytree("v.zarr", "linked.zarr")
    shutil.move("linked.zarr/c", "elsewhere")
    os.symlink("../elsewhere", "linked.zarr/c")
    lists = Path("classify.jsonl").read_text().splitlines()[:60], Path("generate.jsonl").read_text().splitlines()[:40]
    for name, lines in zip(("classify.jsonl", "generate.jsonl"), lists, strict=True):
        Path(name).write_text("\n".join(lines) + "\n")


def run(verb, output=None, **settings):
    """Some shards each; the bytes of the output."""
    settings = Settings(**settings)
    if verb == "classify":
        output = output or "out.jsonl"
        classify(ClassifyJob("textcnn", "classify.jsonl", output, settings=settings))
    elif verb == "generate":
        output = output or "out.jsonl"
        greedy = SamplingParams(temperature=0, max_tokens=3)
        generate(GenerateJob("gpt2", "generate.jsonl", output, greedy, settings=settings))
    elif verb == "draw":
        output = output or "out.npy"
        draw(DrawJob("dcgan", "noise.npy", output, settings=settings))
    else:
        output = output or "out.npy"
        volume = {"convolve": "v.npy", "zarr": "v.zarr", "zarr 2": "v2.zarr", "linked": "linked.zarr"}[verb]
        convolve(ConvolveJob(volume, "k.npy", output, settings=settings))
    return Path(output).read_bytes()


def expected(verb):
    """What an uninterrupted run gives."""
    return run(verb, "right" + (".jsonl" if verb in ("classify", "generate") else ".npy"), **sizes(verb))


def sizes(verb):
    return {"shard_size": {"classify": 1000, "generate": 400, "draw": 3}.get(verb, 4)}


class Meddled:
    """Within the block a file is another, as large where `way` allows it; after it, it is what it was, times too."""

    def __init__(self, path, way):
        self.path, self.way = Path(path), way

    def __enter__(self):
        self.there = self.path.exists()
        self.parent = self.path.resolve().parent
        if not self.there:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            source = Path("v.zarr/c/1/0/0") if "zarr" in str(self.path) else None
            self.path.write_bytes(source.read_bytes() if source else b'{"eos_token_id": 3}')
            return self
        self.content, self.status = self.path.read_bytes(), os.stat(self.path)
        wrong = self.wrong()
        if self.way == "remove":
            self.path.unlink()
        elif self.way == "replace":
            aside = self.path.with_name("aside")
            aside.write_bytes(wrong)
            os.utime(aside, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))
            os.replace(aside, self.path)
        else:
            self.path.write_bytes(wrong[: len(wrong) // 2] if self.way == "cut" else wrong)
            self.put_time_back()
        return self

    def wrong(self):
        """Other content of the same form and size: it is read without complaint where that is possible."""
        content = bytearray(self.content)
        if self.path.suffix in (".json", "") and content[:1] == b"{":
            return bytes(content.replace(b"1", b"2").replace(b"0.", b"1."))
        if self.path.suffix == ".jsonl":
            return bytes(content.replace(b"1", b"2").replace(b"cat", b"dog"))
        if "zarr" in str(self.path) and "/" in str(self.path):
            others = [one for one in self.path.resolve().parent.parent.rglob("*") if one.is_file()]
            others = [one for one in others if one.read_bytes()[:4] == self.content[:4] and one != self.path]
            return others[0].read_bytes() if others else bytes(content)
        content[-40:] = np.arange(10, dtype=np.float32).tobytes()
        return bytes(content)

    def put_time_back(self):
        os.utime(self.path, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))

    def __exit__(self, *error):
        if not self.there:
            self.path.unlink()
            return
        self.path.write_bytes(self.content)
        self.put_time_back()


def attack(monkeypatch, verb, right, path, way, moment):
    """Whether the job was refused. Asserts that its output is right otherwise, and in either case in the end."""
    kind, seen = WORKERS[verb], []
    with monkeypatch.context() as patch:
        if moment == "open":
            opened = kind.__init__

            def init(self, *given):
                with Meddled(path, way):
                    opened(self, *given)

            patch.setattr(kind, "__init__", init)
        else:
            computed, first = kind.run, 1 if moment == "shard" else 2

            def shard(self, shard, out, beat):
                seen.append(shard.number)
                if len(seen) != first:
                    return computed(self, shard, out, beat)
                with Meddled(path, way):
                    return computed(self, shard, out, beat)

            patch.setattr(kind, "run", shard)
        try:
            found = run(verb, **sizes(verb))
        except TilewrightError as error:
            assert error.exit_code in (3, 2), error
            found = None
    assert found in (None, right), "the output is another's"
    try:
        assert run(verb, **sizes(verb)) == right
    except UsageError as error:  # a directory is known by its hash alone, for which so short a job has no time
        assert "zarr" in path and "not known whether its content is" in str(error)
        assert run(verb, **sizes(verb), restart=True) == right
    assert verify("out.jsonl" if verb in ("classify", "generate") else "out.npy").intact
    for name in Path(".").glob("out.*"):
        shutil.rmtree(name) if name.is_dir() else name.unlink()
    return found is None


@pytest.mark.parametrize(("verb", "path"), CASES)
def test_a_file_that_is_another_for_a_while(monkeypatch, verb, path):
    """An edit that keeps the size, while the worker opens its files, and while it computes a shard."""
    right = expected(verb)
    refused = [attack(monkeypatch, verb, right, path, "edit", moment) for moment in ("open", "later")]
    assert any(refused) or path == "k.npy", refused


@pytest.mark.long
@pytest.mark.parametrize(("verb", "path"), CASES)
def test_all_ways_at_all_moments(monkeypatch, verb, path):
    """12 attacks a file, and which of them were seen. Mapped weights are not cut short: that is a SIGBUS."""
    ways = [way for way in WAYS if way != "cut" or not path.endswith(".safetensors")]
    right, each = expected(verb), [(way, moment) for way in ways for moment in MOMENTS]
    refused = {one: attack(monkeypatch, verb, right, path, *one) for one in each}
    print(f"{verb} {path}: {len(refused)} attacks, {sum(refused.values())} refused, 0 wrong outputs")
    assert any(refused.values()) or path == "k.npy", refused


@pytest.mark.parametrize("verb", ["convolve", pytest.param("zarr", marks=pytest.mark.long)])
def test_workers_get_the_kernel_that_was_read(monkeypatch, verb):
    """In processes of their own, which begin when the file has become another."""
    right, kernel, started = run(verb, "right.npy", **sizes(verb)), Path("k.npy").read_bytes(), Local.run

    def other(self, job):
        np.save("k.npy", np.ones((3, 3, 3)))
        return started(self, job)

    monkeypatch.setattr(Local, "run", other)
    assert run(verb, **sizes(verb), workers=2) == right
    assert Path("k.npy").read_bytes() != kernel


@pytest.mark.parametrize("verb", ["zarr", "linked"])
def test_an_array_that_is_edited_between_two_shards(monkeypatch, verb):
    """Of the chunks that are read next, and put back as soon as the first shard after it is there."""
    path = "v.zarr/c/3/0/1" if verb == "zarr" else "linked.zarr/c/3/0/1"
    right, done, open_edits = run(verb, "right.npy", **sizes(verb)), run_module._Run.done, []

    def meddle(self, record, worker):
        done(self, record, worker)
        if record.shard == 0:
            open_edits.append(Meddled(path, "edit").__enter__())

    with monkeypatch.context() as patch:
        patch.setattr(run_module._Run, "done", meddle)
        with pytest.raises(InputError, match=r"changed while it ran: .*was changed at 2"):
            run(verb, **sizes(verb))
    open_edits[0].__exit__()
    assert run(verb, **sizes(verb), restart=True) == right


def test_edits_of_a_linked_folder_are_other_results(here):
    """A folder of chunks that is a symbolic link counts like any other."""
    run("linked", **sizes("linked"))
    before = Tree.of("linked.zarr")
    Path("elsewhere/3/0/1").write_bytes(Path("elsewhere/1/0/0").read_bytes())
    assert Tree.of("linked.zarr").files != before.files
    with pytest.raises(
        TilewrightError, match=r"begun with other settings or inputs: (the size of the input|input\.files) was"
    ):
        run("linked", **sizes("linked"))


def test_a_link_that_leads_elsewhere(tmp_path):
    """To a folder that was there all the time, and is as old."""
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "chunk").write_bytes(name.encode())
    Path("top").mkdir()
    os.symlink("../a", "top/c")
    tree = Tree.of("top")
    tree.check(["c/chunk"])
    tree.check(["c/none"])
    os.unlink("top/c")
    os.symlink("../b", "top/c")
    with pytest.raises(InputError, match=r"top was changed at|leads to another file"):
        tree.check(["c/chunk"])


def test_links_in_a_circle_end():
    Path("top/below").mkdir(parents=True)
    Path("top/below/file").write_bytes(b"x")
    os.symlink("..", "top/below/up")
    assert Tree.of("top").size == 1


def test_files_that_are_changed_as_the_job_begins(monkeypatch):
    """What was read of them for the checks may be of another version than the fingerprint."""
    fingerprint = classify_module.ClassifyTask.fingerprint

    def late(self):
        Path("textcnn/config.json").touch()
        os.chmod("textcnn/config.json", 0o600)
        return fingerprint(self)

    monkeypatch.setattr(classify_module.ClassifyTask, "fingerprint", late)
    with pytest.raises(InputError, match="changed while it ran"):
        run("classify", **sizes("classify"))


def test_a_table_of_other_weights_is_not_kept():
    """Weights that are others while a table's rows are computed, and then again what the table is named after."""
    right = run("classify", "right.jsonl", **sizes("classify"))
    job = ClassifyJob("textcnn", "classify.jsonl", "out.jsonl", table_path="table", settings=Settings(workers=1))
    worker = classify_module.task_of(job).open(Place())
    with Meddled("textcnn/model.safetensors", "edit"):
        worker.model.logits(np.arange(36, dtype=np.int32).reshape(6, 6))
    assert not worker.kept.save() and not os.path.exists("table")
    worker.close()
    classify(job)
    assert os.path.exists("table")
    assert Path("out.jsonl").read_bytes() == right


@pytest.mark.long
def test_a_thousand_random_moments(monkeypatch):
    """Any file of a Zarr job in any way, between any two of its reads."""
    chance, counts = random.Random(5), {"refused": 0, "right": 0}
    read = convolve_worker.Watched.read_into
    for attack_number in range(1000):
        verb = chance.choice(("zarr", "linked", "convolve"))
        folder = {"zarr": "v.zarr", "linked": "elsewhere", "convolve": None}[verb]
        files = [one for one in Path(folder).rglob("*") if one.is_file()] if folder else [Path("v.npy")]
        path, way, at, last = chance.choice(files), chance.choice(WAYS), chance.randrange(4), chance.randrange(1, 3)
        calls, edits = [0], []

        def reading(self, start, target, calls=calls, edits=edits, path=path, way=way, at=at, last=last):
            if calls[0] == at:
                edits.append(Meddled(path, way).__enter__())
            calls[0] += 1
            read(self, start, target)
            if edits and calls[0] == at + last:
                edits.pop().__exit__()

        with monkeypatch.context() as patch:
            patch.setattr(convolve_worker.Watched, "read_into", reading)
            try:
                found = run(verb, **sizes(verb))
            except TilewrightError:
                found = None
        for edit in edits:
            edit.__exit__()
        right = run(verb, "right.npy", **sizes(verb), restart=True)
        assert found in (None, right), (attack_number, verb, path, way, at, last)
        counts["refused" if found is None else "right"] += 1
        for name in ("out.npy", "out.npy.job", "right.npy", "right.npy.job"):
            shutil.rmtree(name, ignore_errors=True) if name.endswith("job") else Path(name).unlink(missing_ok=True)
    print(f"1,000 edits: {counts}, 0 wrong outputs")
    assert counts["refused"] > 100


def test_another_host_compares_samples(tmp_path, monkeypatch):
    """A copy with the same time has another identity there, and the same samples."""
    from tilewright.runtime.jobs.cut import Whole
    from tilewright.runtime.jobs.manifest import Manifest, file_identity

    path = tmp_path / "weights"
    path.write_bytes(b"a" * 100)
    os.utime(path, (1, 1))
    manifest = Manifest(fingerprint=file_identity("model", str(path)), cut=Whole())
    began = AsBegun.of({"model": str(path)})
    assert began.here(manifest) is began
    monkeypatch.setattr("platform.node", lambda: "another")
    path.unlink()
    path.write_bytes(b"a" * 100)
    os.utime(path, (1, 1))
    there = began.here(manifest)
    there.check()
    assert there.host == "another" and not began.holds()
    path.write_bytes(b"b" * 100)
    os.utime(path, (1, 1))
    with pytest.raises(InputError, match="is another file on another than on"):
        began.here(manifest)
