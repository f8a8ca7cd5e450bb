"""The text job: GPT-2 124M with random weights, which continues prompts of 16 tokens by 8 greedy tokens."""

from __future__ import annotations

import numpy as np

from tilewright.bench.job_ladders.steps import Job, Program, Published, Step, in_batches
from tilewright.bench.workloads.gpt2 import TOLERANCE, random_prompts, random_weights, reference_logits
from tilewright.generation.sampling import SamplingParams
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.switches import Without

NEW = 8  # tokens per prompt
SAMPLE = 2  # prompts that are compared with float64
COMPARED = 4  # prompts whose tokens differ from those of the last step; float64 decides whether both are good


class Prompts:
    """See `steps.Workload`. A result is the new tokens of a prompt."""

    def __init__(self, count: int, device: str):
        self.config, self.device, self.total = GPT2Config(), device, count
        self.weights = random_weights(self.config, seed=1)
        self.prompts = random_prompts(self.config, count)
        self.params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)

    def program(self, step: Step) -> Program:
        """See `steps.Workload`."""
        model = GPT2(self.config, self.weights, device=self.device, without=step.without)

        def generate(prompts: np.ndarray) -> np.ndarray:
            return np.array([found.outputs[0].token_ids for found in model.generate(prompts, self.params)], np.int64)

        return lambda n: in_batches(generate, self.prompts[:n], step.batch)

    def error(self, results: np.ndarray) -> float:
        """How far the logits of the chosen tokens of the first prompts are below the best, as a share of what is
        allowed."""
        return self._gap(np.arange(min(SAMPLE, len(results))), results)

    def difference(self, results: np.ndarray, today: np.ndarray) -> float:
        """The larger `error` of both results for prompts where their tokens differ: float64 must find both nearly the
        best."""
        unlike = np.flatnonzero((results != today).any(axis=1))[:COMPARED]
        return max(self._gap(unlike, results), self._gap(unlike, today)) if len(unlike) else 0.0

    def _gap(self, some: np.ndarray, tokens: np.ndarray) -> float:
        ids = np.hstack([self.prompts[some], tokens[some]])[:, :-1]
        exact = reference_logits(self.config, self.weights, ids, NEW)
        gap = exact.max(axis=2) - np.take_along_axis(exact, tokens[some][:, :, None], axis=2)[..., 0]
        return float(gap.max()) / (2 * TOLERANCE["float32"] * max(1.0, float(exact.std())))


NAIVE_CPU = {"attention": "cpu.unfused", "layernorm": "cpu.naive", "embedding": "cpu.naive", "matmul": "cpu.reordered"}
NAIVE_GPU = {
    "attention": "simt.unfused", "layernorm": "simt.naive", "embedding": "simt.naive", "matmul": "simt.register",
    "matmul_argmax": "simt.row",
}  # fmt: skip
NO_CACHE: Without = frozenset({"kv-cache"})
PLAIN: Without = frozenset({"graphs", "overlap", "pinned"})  # a first program on a GPU uses none of these
CPU = (
    Step("naive", "plain loops in every layer, which computes all tokens for each new one; one prompt, one thread",
         NAIVE_CPU, NO_CACHE, threads=1, batch=1),
    Step("KV cache", "keys and values of earlier tokens are kept", NAIVE_CPU, threads=1, batch=1),
    Step("batched", "all prompts in one call, still on one thread", NAIVE_CPU, threads=1),
    Step("layers as GEMM", "matrices packed in the order of use, a block in registers; threads take blocks",
         NAIVE_CPU | {"matmul": "cpu.packed"}),
    Step("fused attention", "one kernel; the scores of a query stay in the first cache; threads take heads",
         {"attention": "cpu.fused", "layernorm": "cpu.naive", "matmul": "cpu.packed"}),
    Step("blocks and vectors", "a block of queries shares each loaded key and value; norms and sums are vectors"),
)  # fmt: skip
GPU = (
    Step("naive", "one thread per output, all tokens for each new one; one prompt per call",
         NAIVE_GPU, NO_CACHE | PLAIN, batch=1),
    Step("KV cache", "keys and values of earlier tokens are kept", NAIVE_GPU, PLAIN, batch=1),
    Step("batched", "all prompts in one call", NAIVE_GPU, PLAIN),
    Step("shared memory", "products of tiles in shared memory", NAIVE_GPU | {"matmul": "simt.shared"}, PLAIN),
    Step("layers as GEMM", "8 x 8 sums per thread in registers, loads ahead of the products",
         NAIVE_GPU | {"matmul": "simt.buffered"}, PLAIN),
    Step("fused attention", "one kernel: no score leaves its registers; one warp per row of a norm",
         {"matmul": "simt.buffered", "attention": "simt.fused", "matmul_argmax": "simt.shuffles"}, PLAIN),
    Step("tensor cores", "products of bfloat16 limbs and blocks of queries on matrix units", without=PLAIN),
    Step("CUDA graph", "all kernels of a new token are launched at once; copies overlap with kernels"),
)  # fmt: skip
PUBLISHED = (Published("GPT-2 124M, 16 GPUs", 438.9, "16 GPUs of a cluster, model not stated"),)
JOB = Job(
    "gpt2", "tokens",
    "GPT-2 124M with random weights: 8 new tokens for each prompt of 16, the likeliest ones.",
    CPU, GPU, {"cpu": 64, "cuda": 1024}, Prompts, PUBLISHED, each=NEW,
)  # fmt: skip
