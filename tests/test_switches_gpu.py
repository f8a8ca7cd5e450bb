"""The switches of a GPU: whole jobs write the same bytes with and without each one that keeps the bits. The engine's
own tests are in `generation/cuda/test_engine_gpu.py`. Without a GPU (TILEWRIGHT_GPU=1 says there is one), tiny models
run on simulated kernels."""

from contextlib import nullcontext
from io import BytesIO

import numpy as np
import pytest

from dcgan_models import random_noise, random_weights
from gpu import ON_GPU, PLACE
from tilewright.bench.workloads.dcgan_reference import reference_images
from tilewright.models.dcgan import DCGAN, DCGANConfig, DCGANLayer
from tilewright.ops.core.ladder import using
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.named_models import model_path
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.score import ScoreJob, score
from tilewright.switches import OPTIMISATIONS

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
on_a_gpu = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")

WORDS = ["the", "king", "of", "a", "small", "quiet", "house", "was", "never", "in", "love", "with", "this", "film"]
ENDINGS = {"generate": ".jsonl", "classify": ".jsonl", "score": ".jsonl", "draw": ".npy", "convolve": ".npy"}
LAYERS = (DCGANLayer(channels=4, kernel=3, padding=(0, 1)), DCGANLayer(channels=3, kernel=2, padding=(0, 0)))
TINY = DCGANConfig(z_size=3, size=1, channels=5, layers=LAYERS)
CASES = [(verb, name) for name, each in OPTIMISATIONS.items() for verb in each.verbs]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """Inputs of the four verbs."""
    path, rng = tmp_path_factory.mktemp("switches"), np.random.default_rng(3)
    lines = [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(600)]
    (path / "in.txt").write_text("\n".join(lines) + "\n")
    np.save(path / "in.npy", rng.standard_normal((120, 150, 170), dtype=np.float32))
    return path


def job(verb, folder, output, dtype, without=frozenset()):
    """Run the verb's job on the GPU, and return its output's bytes."""
    settings = Settings(device="cuda", dtype=dtype, restart=True, without=frozenset(without))
    text, path = str(folder / "in.txt"), str(output)
    if verb == "generate":
        from tilewright.generation.sampling import SamplingParams

        params = SamplingParams(max_tokens=24, temperature=0 if dtype == "bfloat16" else 1)
        generate(GenerateJob(model_path("poet"), text, path, params, settings=settings))
    elif verb == "classify":
        classify(ClassifyJob(model_path("critic"), text, path, settings=settings))
    elif verb == "score":
        score(ScoreJob(model_path("poet"), text, path, settings=settings))
    elif verb == "draw":
        draw(DrawJob(model_path("portraits"), None, path, count=3000, settings=settings))
    else:
        convolve(ConvolveJob(str(folder / "in.npy"), "gaussian:2", path, settings=settings))
    return output.read_bytes()


@pytest.fixture(scope="module", name="whole")
def _whole(folder):
    """whole(verb, dtype): the bytes of a run with every optimisation."""
    found = {}

    def make(verb, dtype):
        if (verb, dtype) not in found:
            found[verb, dtype] = job(verb, folder, folder / f"{verb}.{dtype}{ENDINGS[verb]}", dtype)
        return found[verb, dtype]

    return make


def alike(found, wanted, until=b"\n"):
    """The share of lines that are equal, up to the bytes `until`. Other last bits of a logit change a drawn token where
    the random number is next to the border between two tokens: about one of 14,400 here."""
    pairs = zip(found.splitlines(), wanted.splitlines(), strict=True)
    return np.mean([ours.split(until)[0] == theirs.split(until)[0] for ours, theirs in pairs])


@on_a_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("verb", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_job_writes_the_same_bytes_if_the_switch_says_so(verb, name, dtype, folder, whole, tmp_path):
    if (verb == "convolve" and dtype != "float32") or not OPTIMISATIONS[name].fits(verb, "cuda", dtype):
        pytest.skip(f"{verb} has no {name} in {dtype}")
    wanted = whole(verb, dtype)
    found = job(verb, folder, tmp_path / f"out{ENDINGS[verb]}", dtype, {name})
    if "cuda" in OPTIMISATIONS[name].keeps_bits:
        assert found == wanted
    elif verb == "generate":
        assert found == wanted if dtype == "bfloat16" else alike(found, wanted) > 0.99  # bfloat16 is greedy here
    elif verb == "draw":
        ours, theirs = (np.load(BytesIO(bytes_)) for bytes_ in (found, wanted))
        assert 0 < np.abs(ours - theirs).max() < {"float32": 2e-4, "bfloat16": 0.2}[dtype]
    else:
        assert alike(found, wanted, until=b'"score"') > 0.99


@on_a_gpu
def test_every_switch_at_once_changes_few_completions(folder, whole, tmp_path):
    without = {name for name, each in OPTIMISATIONS.items() if "generate" in each.verbs}
    found = job("generate", folder, tmp_path / "out.jsonl", "float32", without)
    assert alike(found, whole("generate", "float32")) > 0.99


@on_a_gpu
@pytest.mark.parametrize("verb", ["generate", "classify", "draw"])
def test_without_graphs_none_is_captured(verb, folder, whole, tmp_path, monkeypatch):
    def refused(*given, **options):
        raise AssertionError("a CUDA graph is captured")

    wanted = whole(verb, "float32")
    monkeypatch.setattr(torch.cuda, "graph", refused)
    assert job(verb, folder, tmp_path / f"out{ENDINGS[verb]}", "float32", {"graphs"}) == wanted


@on_a_gpu
def test_host_buffers_are_pinned_unless_that_is_switched_off():
    for without in ({}, {"pinned"}):
        host = torch.from_numpy(cuda.Cuda("float32", without=without).host((3, 4)))
        assert host.is_pinned() == (not without)


@on_a_gpu
def test_without_overlap_a_step_is_done_when_it_is_queued(monkeypatch):
    backend = cuda.Cuda("float32", without={"overlap"})
    host, back, there = backend.host(1 << 22), backend.host(1 << 22), backend.empty((1 << 22,))
    for pipeline in (backend.pipeline(3), cuda.Pipeline("cuda", downloads=True, overlap=False)):
        host[:] = np.arange(1 << 22)
        assert not pipeline.streams and pipeline.downloads is None
        pipeline.queue(cuda.Step([(host, there)], lambda: there.mul_(2), [(there, back)]))
        assert torch.cuda.current_stream().query() and (back == 2 * host).all()


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16"] if ON_GPU else ["float32"])
def test_images_without_folding_are_within_the_classes_bound(dtype):
    config = DCGANConfig() if ON_GPU else TINY
    weights, z = random_weights(config), random_noise(config, 5)
    slow = using(matmul="simt.register", conv_transpose2d="simt.gather", batchnorm="simt.naive")
    with nullcontext() if ON_GPU else slow:
        model = DCGAN(config, weights, dtype=dtype, device=cuda.Cuda(dtype, PLACE, {"folding"}), batch=3)
        images = model.generate(z)
    limit = {"float32": 2e-4, "tf32": 2e-2, "float16": 5e-2, "bfloat16": 0.2}[dtype]
    assert np.abs(images - reference_images(config, weights, z)).max() < limit
