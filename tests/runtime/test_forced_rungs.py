"""A forced rung is used, or the job says that it is not: every verb with every operation, at several settings."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from gpt2_models import save
from tilewright.cli import main
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import Ladder, operations, using
from tilewright.ops.matmul import matmul
from tilewright.ops.softmax import softmax
from tilewright.runtime.convert.models import init_dcgan, init_textcnn
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.generate.worker import GenerateWorker

ALWAYS = ("embedding", "layernorm", "attention", "matmul")
JOBS = {  # command line -> the operations that it runs, those beneath others included
    ("generate", "-i", "lines.txt", "--temperature", "0"): (*ALWAYS, "matmul_argmax"),
    ("generate", "-i", "lines.txt", "--temperature", "0", "--min-tokens", "1"): (*ALWAYS, "matmul_argmax", "sample"),
    ("generate", "-i", "lines.txt", "--temperature", "0", "--presence-penalty", "1"): (*ALWAYS, "sample"),
    ("generate", "-i", "lines.txt"): (*ALWAYS, "sample"),
    ("generate", "-i", "lines.txt", "--rung", "attention=cpu.unfused"): (*ALWAYS, "sample", "softmax"),
    ("score", "-i", "lines.txt"): (*ALWAYS, "logprob"),
    ("classify", "-i", "ids.bin"): ("embedding_conv1d", "matmul"),
    ("classify", "-i", "ids.bin", "--rung", "embedding_conv1d=cpu.gather"): (
        "embedding_conv1d", "matmul", "embedding", "conv1d",
    ),
    ("draw", "-n", "2"): ("matmul", "conv_transpose2d"),
    ("draw", "-n", "2", "--without", "folding"): ("matmul", "conv_transpose2d", "batchnorm"),
    ("draw", "-n", "2", "--rung", "conv_transpose2d=cpu.phases"): ("matmul", "conv_transpose2d", "elementwise"),
    ("convolve", "-i", "32.npy", "--kernel", "box:3"): ("conv3d",),
    ("convolve", "-i", "32.npy", "--kernel", "box:3", "--dtype", "float64"): ("correlate",),
    ("convolve", "-i", "64.npy", "--kernel", "laplace"): ("correlate",),
}  # fmt: skip
OUTPUTS = {"generate": "out.txt", "score": "out.jsonl", "classify": "out.bin", "draw": "out.npy", "convolve": "out.npy"}
MODELS = {"generate": "gpt2", "score": "gpt2", "classify": "textcnn", "draw": "dcgan"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Small models and inputs."""
    path, rng = tmp_path_factory.mktemp("rungs"), np.random.default_rng(5)
    save(path / "gpt2")
    init_textcnn(str(path / "textcnn"), 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    init_dcgan(str(path / "dcgan"), 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    (path / "lines.txt").write_text("the cat\nthe dog\n")
    rng.integers(0, 50, (4, 6), np.int32).tofile(path / "ids.bin")
    np.save(path / "32.npy", rng.standard_normal((5, 6, 7)).astype(np.float32))
    np.save(path / "64.npy", rng.standard_normal((5, 6, 7)))
    return path


@pytest.fixture(name="run")
def _run(place, tmp_path, monkeypatch, capsys):
    """run(command, *more) -> (exit code, stdout, stderr); the job's output is in `tmp_path`."""
    monkeypatch.chdir(place)

    def call(command, *more):
        verb, *options = command
        model = ("-p", MODELS[verb]) if verb in MODELS else ()
        tokens = ("--max-tokens", "3") if verb == "generate" else ()
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([verb, *model, *options, *tokens, "-o", str(tmp_path / OUTPUTS[verb]), "--threads", "1", *more])
        return caught.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def ran(monkeypatch):
    """{operation: the rung that it chose last}."""
    found, choose = {}, Ladder.choose

    def noting(ladder, problem):
        rung = choose(ladder, problem)
        found[ladder.op] = rung.name
        return rung

    monkeypatch.setattr(Ladder, "choose", noting)
    return found


@pytest.mark.parametrize("command", JOBS, ids=" ".join)
def test_every_operation_of_a_job_runs_or_is_refused(run, ran, tmp_path, command):
    assert run(command, "--restart")[0] == 0
    chosen = dict(ran)
    both = ("generate", "score")  # one prompt is greedy whatever is wanted; a model prepares for it
    warm_up = {"matmul_argmax"} if command[0] in both else set()
    assert set(chosen) - warm_up == set(JOBS[command]) - warm_up
    forced = {word.partition("=")[0] for word in command}
    before = sorted(tmp_path.iterdir())
    for op in [op for op in operations() if op not in forced]:
        ladder = importlib.import_module(f"tilewright.ops.{op}.ladder").ladder
        name = chosen.get(op) or next(name for name in ladder.rungs if name.startswith("cpu."))
        ran.clear()
        code, _, errors = run(command, "--restart", "--rung", f"{op}={name}")
        if op in JOBS[command]:
            assert code == 0 and ran[op] == name, errors
        else:
            assert code == 2 and f"--rung is {op}={name}; it has no effect" in errors
            assert not ran and sorted(tmp_path.iterdir()) == before


REFUSED = [
    (["generate", "-i", "lines.txt", "--temperature", "0"], "sample=cpu.buckets",
     "no effect where the likeliest token is taken: generate runs matmul_argmax instead. Force a rung of "
     "matmul_argmax, or give a --temperature above 0"),
    (["generate", "-i", "lines.txt"], "matmul_argmax=cpu.logits", "drawn or logits are changed: generate runs sample"),
    (["generate", "-i", "lines.txt"], "softmax=cpu.vectors", "beneath attention=cpu.unfused. Give --rung attention"),
    (["convolve", "-i", "32.npy", "--kernel", "box:3"], "correlate=cpu.naive", "on float32: convolve runs conv3d"),
    (["convolve", "-i", "64.npy", "--kernel", "box:3"], "conv3d=cpu.rows", "on float64: convolve runs correlate"),
    (["classify", "-i", "ids.bin"], "conv1d=cpu.taps", "only beneath embedding_conv1d=cpu.gather"),
    (["draw", "-n", "1"], "batchnorm=cpu.naive", "folded into the weights: draw runs conv_transpose2d instead. Give "
     "--without folding"),
    (["draw", "-n", "1"], "elementwise=cpu.vectors", "only beneath conv_transpose2d=cpu.phases"),
]  # fmt: skip


@pytest.mark.parametrize("more", [(), ("--workers", "2"), ("--part", "0/2")], ids=" ".join)
@pytest.mark.parametrize(("command", "rung", "words"), REFUSED, ids=[rung for _, rung, _ in REFUSED])
def test_a_refusal_names_what_runs_and_what_to_do(run, tmp_path, command, rung, words, more):
    code, _, errors = run(command, "--rung", rung, *more)
    assert code == 2 and words in errors and not list(tmp_path.iterdir())


def test_plan_refuses_it_too(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    options = ("-p", "gpt2", "-i", "lines.txt", "-o", "out.txt", "--temperature", "0", "--rung", "sample=cpu.buckets")
    for given in (options, ("-p", "gpt2", "--count", "3", *options[6:])):
        with pytest.raises(SystemExit) as caught:
            main(["plan", "generate", *given])
        assert caught.value.code == 2 and "it has no effect" in capsys.readouterr().err


PROMPTS = {
    "greedy": [{"prompt": "the cat"}, {"prompt": "the dog", "temperature": 0}],
    "one drawn": [{"prompt": "the cat"}, {"prompt": "the dog", "temperature": 1}],
}


@pytest.mark.parametrize("engine", [(), ("--workers", "2", "--shard-size", "20")], ids=["inline", "two workers"])
@pytest.mark.parametrize("kind", PROMPTS)
def test_records_that_give_their_own_temperature(place, tmp_path, monkeypatch, capsys, kind, engine):
    """The job is not refused, since a record may draw; in the end it is told whether one did, again and again."""
    monkeypatch.chdir(place)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS[kind]))
    usual = ["generate", "-p", "gpt2", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    usual += ["--temperature", "0", "--max-tokens", "2", "--rung", "sample=cpu.buckets", "--threads", "1", *engine]
    said = "--rung sample=cpu.buckets had no effect: sample never ran, as no prompt drew tokens"
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as caught:
            main([*usual, *more])
        out, errors = capsys.readouterr()
        assert not caught.value.code, errors
        assert (f"Warning: {said}" in errors) == (kind == "greedy")
        if more:
            assert json.loads(out)["unused_rungs"] == (["sample=cpu.buckets"] if kind == "greedy" else [])
        else:
            assert (said in out) == (kind == "greedy")


MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not installed: pip install mpi4py mpich")
@pytest.mark.parametrize("kind", PROMPTS)
def test_ranks_of_mpi_tell_it_once(place, tmp_path, kind):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS[kind]))
    options = ("--temperature", "0", "--max-tokens", "2", "--rung", "sample=cpu.buckets", "--threads", "1")
    files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--shard-size", "20")
    job = [sys.executable, "-m", "tilewright", "generate", "-p", "gpt2", *files, *options, "--engine", "mpi"]
    around = {**os.environ, "PYTHONPATH": str(Path(tilewright.__file__).parent.parent)}
    done = subprocess.run([MPIEXEC, "-n", "2", *job], cwd=place, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = "Warning: --rung sample=cpu.buckets had no effect: sample never ran, as no prompt drew tokens"
    assert done.stderr.count(said) == (kind == "greedy")


def test_shards_of_an_earlier_version_say_nothing_of_it(place, tmp_path, monkeypatch):
    """Their figures do not tell which operations ran: no rung is then called unused."""
    monkeypatch.chdir(place)
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "the cat"}) + "\n")

    def job(name):
        return GenerateJob(
            "gpt2", str(tmp_path / "in.jsonl"), str(tmp_path / name), settings=Settings(rungs={"sample": "cpu.buckets"})
        )

    assert generate(job("now.jsonl")).unused_rungs == ["sample=cpu.buckets"]
    assert generate(job("now.jsonl")).unused_rungs == ["sample=cpu.buckets"], "a finished job says it again"

    run = GenerateWorker.run

    def as_earlier(self, shard, out, beat):
        records = run(self, shard, out, beat)
        out.figures = {name: value for name, value in out.figures.items() if name in ("tokens", "prompt_tokens", "cut")}
        return records

    monkeypatch.setattr(GenerateWorker, "run", as_earlier)
    assert generate(job("earlier.jsonl")).unused_rungs == []


def test_a_job_of_python(place, tmp_path, monkeypatch):
    """Under `using`, the job's report says it, and `using` itself nothing."""
    monkeypatch.chdir(place)
    (tmp_path / "in.jsonl").write_text('{"prompt": "the cat"}\n')
    job = GenerateJob(model="gpt2", input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "out.jsonl"))
    with using(sample="cpu.buckets"):
        assert generate(job).unused_rungs == ["sample=cpu.buckets"]
        job = GenerateJob(model="gpt2", input="lines.txt", output=str(tmp_path / "out.txt"))
        with pytest.raises(UsageError, match="likeliest token") as caught:
            generate(job)
    assert (caught.value.parameter, caught.value.value) == ("--rung", "sample=cpu.buckets")


def imported(path: Path, seen: set[Path]) -> set[str]:
    """The operations whose functions a file of `ops` calls, and the files of its own operation that it imports."""
    seen.add(path)
    found, op = set(), path.relative_to(OPS).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tilewright.ops."):
            continue
        other = node.module.split(".")[2]
        if other != op and len(node.module.split(".")) == 3 and any(name.name in CALLED for name in node.names):
            found.add(other)
        elif other == op:
            modules = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
            files = [OPS.parent.parent / f"{module.replace('.', '/')}.py" for module in modules]
            for file in [file for file in files if file.exists() and file not in seen]:
                found |= imported(file, seen)
    return found


OPS = Path(tilewright.__file__).parent / "ops"
CALLED = {*operations(), "prepare", "relu", "gelu", "tanh"}


@pytest.mark.parametrize("op", operations())
def test_a_rung_declares_what_it_calls(op):
    """By the imports of its kernel's file and of its `prepare`'s."""
    for rung in importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs.values():
        files = [path.split(":")[0].replace(".", "/") for path in (rung.kernel, rung.prepare) if path]
        called = {other for file in files for other in imported(OPS / f"{file}.py", set())}
        assert set(rung.calls) == called, rung.name


def test_using_warns_of_a_rung_without_effect(rng):
    """In Python's own calls: at the line of the block, with the operations that ran; not where an error ends it."""
    a = rng.standard_normal((4, 6)).astype(np.float32)
    with pytest.warns(UserWarning) as found, using(sample="cpu.buckets"), using(matmul="cpu.packed"):
        matmul(a, a.T)
    (warning,) = found
    assert str(warning.message) == "using(sample='cpu.buckets') had no effect on this block: it ran matmul"
    assert warning.filename == __file__
    with using(softmax="cpu.naive"):
        softmax(a[:0])  # no row needs a kernel
    with pytest.raises(ZeroDivisionError), using(matmul="cpu.packed"):
        raise ZeroDivisionError
    with pytest.warns(UserWarning, match=r"using\(conv3d='cpu.rows'\) .* it ran correlate"), using(conv3d="cpu.rows"):
        tilewright.ndimage.correlate(np.zeros((4, 4, 4)), np.ones((3, 3, 3)))


LAYERS = {  # command -> (a layer with its rung, another rung of the operation, layer after the last one, their number)
    ("draw", "-n", "2"): ("conv_transpose2d@1", "cpu.scatter", "conv_transpose2d@2", "1 time"),
    ("classify", "-i", "ids.bin"): ("matmul@2", "cpu.vectors", "matmul@3", "2 times"),
    ("classify", "-i", "ids.bin", "--rung", "embedding_conv1d=cpu.gather"): (
        "conv1d@2", "cpu.taps", "conv1d@3", "2 times",
    ),
    ("generate", "-i", "lines.txt", "--temperature", "0"): ("matmul@9", "cpu.vectors", "matmul@10", "9 times"),
}  # fmt: skip


@pytest.mark.parametrize("command", LAYERS, ids=" ".join)
def test_a_rung_of_one_layer(run, monkeypatch, tmp_path, command):
    """It runs there and nowhere else, and a layer that the model does not have is refused with the number of calls."""
    layer, rung, beyond, calls = LAYERS[command]
    op, choose, ran = layer.partition("@")[0], Ladder.choose, []

    def noting(ladder, problem):
        ran.append((ladder.op, choose(ladder, problem).name))
        return choose(ladder, problem)

    monkeypatch.setattr(Ladder, "choose", noting)
    assert run(command, "--rung", f"{layer}={rung}", "--restart")[0] == 0
    names = {name for ladder, name in ran if ladder == op}
    assert rung in names and (command[0] == "draw" or len(names) == 2)
    code, _, errors = run(command, "--rung", f"{beyond}={rung}", "--restart")
    assert code == 2 and f"has no such layer: it calls {op} {calls}. Choose a layer from {op}@1" in errors


@pytest.mark.parametrize(("rungs", "words"), [
    (["matmul@1=cpu.packed", "matmul@01=cpu.vectors"], "matmul@1 is given twice, as cpu.packed and cpu.vectors"),
    (["matmul@0=cpu.packed"], "matmul@0: the layer '0' must be a number from 1"),
    (["matmul@=cpu.packed"], "matmul@: the layer '' must be a number from 1"),
    (["elementwise@1=cpu.vectors"], "calls of elementwise are not numbered as layers; those of matmul, conv_trans"),
    (["matmul@1=cpu.packed", "matmul=cpu.vectors"], "each layer of matmul has a rung of its own. Leave it out"),
    (["conv_transpose2d@1=cpu.scatter", "elementwise=cpu.vectors"], "only beneath conv_transpose2d=cpu.phases"),
])  # fmt: skip
def test_layers_that_are_refused(run, rungs, words):
    code, _, errors = run(("draw", "-n", "1"), *(word for rung in rungs for word in ("--rung", rung)))
    assert code == 2 and words in errors


def test_a_layer_in_python(place):
    """A layer's own rung wins over its operation's; a model refuses layers that it does not have."""
    with using(**{"matmul": "cpu.packed", "matmul@2": "cpu.vectors"}):
        assert [weight.rung for weight, _ in tilewright.load(place / "textcnn").linears] == [
            "cpu.packed",
            "cpu.vectors",
        ]
    with using(**{"matmul@3": "cpu.vectors"}), pytest.raises(UsageError, match="TextCNN has no such layer: it calls"):
        tilewright.load(place / "textcnn")
    with pytest.raises(UsageError, match="no operation sum; the operations"), using(**{"sum@3": "cpu.vectors"}):
        pass
