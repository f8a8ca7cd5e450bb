"""The jobs that a sweep runs: a loaded model, its input in the host's memory, and results in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.errors import UsageError
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.noise import noise
from tilewright.models.textcnn import TextCNN, TextCNNConfig

JOBS = {"sentiment": "sentences", "gpt2": "prompts", "dcgan": "images", "convolve": "planes"}  # job -> its records
DTYPES = {
    "sentiment": ("float32", "bfloat16", "float16"),
    "gpt2": ("float32", "bfloat16"),
    "dcgan": ("float32", "bfloat16", "float16", "tf32"),
    "convolve": ("float32",),
}
Measured = TextCNNConfig | GPT2Config | DCGANConfig
MODELS: dict[str, type[TextCNNConfig] | type[GPT2Config] | type[DCGANConfig]] = {
    "sentiment": TextCNNConfig, "gpt2": GPT2Config, "dcgan": DCGANConfig,
}  # fmt: skip
TOKENS = 8  # new tokens per prompt, as in the course
CHECKED = 8  # records that are checked against float64 before anything is timed


@dataclass(frozen=True, eq=False)
class Setting:
    """What to run: one of JOBS. config, weights: of its model; None: the course's sizes with random weights. model: the
    name of a model that the user gave. ids: int32 (n, 16), sentences for the course's TextCNN, repeated if there are
    too few; None: random ones."""

    job: str
    device: str = "cpu"
    dtype: str = "float32"
    config: Measured | None = None
    weights: dict[str, np.ndarray] | None = None
    model: str = ""
    ids: np.ndarray | None = None

    @property
    def records(self) -> str:
        """The name of the parameter that is the number of records, such as "images"."""
        return JOBS[self.job]


class Job(Protocol):
    """A job with its model and its input. size: the model's size, in words. each: units per record, in which a rate is
    given. edge: the number of last results whose bits depend on the number of records."""

    size: str
    each: int
    edge: int

    def error(self) -> tuple[float, float]:
        """(largest error of the first records against float64, the allowed one)."""

    def run(self, count: int, batch: int) -> np.ndarray:
        """The results of the first `count` records, computed `batch` records at a time; 0: with the product's own
        batches."""


class Sentiment:
    """Sentences through the TextCNN. Before anything is timed, the token table has all words of the input."""

    each, edge = 1, 0

    def __init__(self, setting: Setting, most: int) -> None:
        from tilewright.models.initial import random_textcnn

        self.dtype, config = setting.dtype, setting.config or TextCNNConfig()
        assert isinstance(config, TextCNNConfig)
        shape = most, config.sequence_length
        drawn = np.random.default_rng(1).integers(0, config.vocab_size, shape, np.int32)
        self.config, self.weights = config, setting.weights or random_textcnn(config.tensor_shapes(), seed=1)
        self.ids = drawn if setting.ids is None else np.resize(setting.ids, shape)
        self.model = TextCNN(self.config, self.weights, dtype=setting.dtype, device=setting.device)
        self.size = f"sentences of {self.config.sequence_length} tokens"

    def error(self) -> tuple[float, float]:
        from tilewright.bench.workloads.sentiment import TOLERANCE, reference_logits
        from tilewright.formats.validate import largest_error

        self.model.logits(self.ids)
        some = self.ids[:CHECKED]
        exact = reference_logits(self.config, self.weights, some)
        return largest_error(self.model.logits(some), exact), TOLERANCE.get(self.dtype, TOLERANCE["bfloat16"])

    def run(self, count: int, batch: int) -> np.ndarray:
        spans = _spans(count, batch)
        return np.concatenate([self.model.logits(self.ids[first:last]) for first, last in spans])


class Text:
    """Prompts of 16 tokens through GPT-2, with TOKENS new tokens each. The prompts of a batch start and end
    together."""

    edge = 0

    def __init__(self, setting: Setting, most: int) -> None:
        from tilewright.bench.workloads import gpt2

        config = setting.config or GPT2Config()
        assert isinstance(config, GPT2Config)
        weights = setting.weights or gpt2.random_weights(config, seed=1)
        self.prompts = gpt2.random_prompts(config, most)
        self.each = min(TOKENS, config.context - self.prompts.shape[1])
        self.setting = gpt2.Setting(config, weights, self.prompts, most, tokens=self.each, device=setting.device)
        self.engine = gpt2.ours(config, weights, setting.dtype, setting.device)
        self.size = f"{gpt2.model_name(config)}, {self.prompts.shape[1]} -> {self.each} tokens"

    def error(self) -> tuple[float, float]:
        from tilewright.bench.workloads.gpt2 import check

        return check(self.setting, self.engine), np.inf  # it raises InternalError itself

    def run(self, count: int, batch: int) -> np.ndarray:
        spans = _spans(count, batch)
        return np.concatenate([self.engine.generate(self.prompts[a:b], self.each, 0, 1) for a, b in spans])


class Images:
    """Noise through the DCGAN's generator to float32 images. The images of a batch pass the layers together."""

    each, edge = 1, 0

    def __init__(self, setting: Setting, most: int) -> None:
        from tilewright.bench.workloads.dcgan import random_weights

        config = setting.config or DCGANConfig()
        assert isinstance(config, DCGANConfig)
        self.setting, self.config = setting, config
        self.weights = setting.weights or random_weights(config, seed=1)
        self.noise = noise(1, 0, most, self.config.z_size)
        self.images = np.empty((most, *self.config.image_shape), np.float32)
        self.models: dict[int, DCGAN] = {}
        self.size = "{} x {} pixels".format(*self.config.image_shape)

    def error(self) -> tuple[float, float]:
        from tilewright.bench.workloads.dcgan import TOLERANCE
        from tilewright.bench.workloads.dcgan_reference import reference_images

        some = self.noise[:CHECKED]
        exact = reference_images(self.config, self.weights, some)
        return float(np.abs(self.run(len(some), 0) - exact).max()), TOLERANCE[self.setting.dtype]

    def run(self, count: int, batch: int) -> np.ndarray:
        if batch not in self.models:
            setting = self.setting
            self.models[batch] = DCGAN(
                self.config, self.weights, dtype=setting.dtype, device=setting.device, batch=batch or None
            )
        return self.models[batch].generate(self.noise[:count], out=self.images[:count])


class Volume:
    """A volume of planes of 128 x 128 float32 voxels, convolved with a kernel of 5 x 5 x 5, with zeros outside."""

    each, edge, size = 1, 2, "planes of 128x128, kernel 5x5x5"

    def __init__(self, setting: Setting, most: int) -> None:
        from tilewright.ops.conv3d import prepare

        rng = np.random.default_rng(1)
        self.device = setting.device
        self.volume = rng.standard_normal((most, 128, 128), dtype=np.float32)
        self.weights = rng.standard_normal((5, 5, 5), dtype=np.float32)
        self.prepared = prepare(self.weights) if self.device == "cpu" else prepare(self.weights, device=self.device)

    def error(self) -> tuple[float, float]:
        from tilewright.ops.conv3d import ladder
        from tilewright.ops.conv3d.problem import Case, bound
        from tilewright.ops.conv3d.reference import conv3d

        some = {"x": self.volume[:CHECKED], "weights": self.weights}
        exact, case = conv3d(**some), Case(len(some["x"]), 128, 128, 5, 5, 5, device=self.device)
        allowed = bound(case, some, exact, ladder.choose(case.problem).c)
        return float((np.abs(self.run(len(exact), 0) - exact) / allowed).max()), 1.0

    def run(self, count: int, batch: int) -> np.ndarray:
        from tilewright.ops.conv3d import conv3d

        if batch:
            raise UsageError("the job convolve has no batches: a volume is one record", parameter="--batch-size")
        if self.device == "cpu":
            return conv3d(self.volume[:count], self.prepared, mode="constant")
        import torch

        x = torch.from_numpy(self.volume[:count]).to(self.device)
        return conv3d(x, self.prepared, mode="constant").cpu().numpy()


KINDS: dict[str, Callable[[Setting, int], Job]] = {
    "sentiment": Sentiment, "gpt2": Text, "dcgan": Images, "convolve": Volume,
}  # fmt: skip


def _spans(count: int, batch: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of each batch; one batch of all records for 0."""
    for first in range(0, count, batch or count):
        yield first, min(count, first + (batch or count))
