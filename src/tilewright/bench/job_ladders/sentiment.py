"""The sentiment job: the course's TextCNN at full size, real sentences, random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewright.bench.job_ladders.steps import Job, Program, Published, Step, in_batches
from tilewright.bench.workloads.sentiment import TOLERANCE, reference_logits
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.switches import Without

SENTENCES = Path(__file__).parents[2] / "data" / "sentences.bin"  # 1,024 sentences of the course
SAMPLE = 16  # sentences that are compared with float64; all are compared with the last step
LIMIT = TOLERANCE["float32"]  # of the logits: the smaller of the absolute and the relative error


class Sentences:
    """See `steps.Workload`. If more sentences are needed than the package has, they are repeated."""

    def __init__(self, count: int, device: str):
        self.config, self.device = TextCNNConfig(), device
        self.ids = np.resize(np.fromfile(SENTENCES, np.int32), (count, self.config.sequence_length))
        self.weights = random_textcnn(self.config.tensor_shapes(), seed=1)
        self.exact = reference_logits(self.config, self.weights, self.ids[:SAMPLE])

    @property
    def total(self) -> int:
        """See `steps.Workload`."""
        return len(self.ids)

    def program(self, step: Step) -> Program:
        """See `steps.Workload`."""
        model = TextCNN(self.config, self.weights, device=self.device, without=step.without)
        return lambda n: in_batches(model.logits, self.ids[:n], step.batch)

    def error(self, results: np.ndarray) -> float:
        """See `steps.Workload`."""
        return largest_error(results[:SAMPLE], self.exact[: len(results)]) / LIMIT

    def difference(self, results: np.ndarray, today: np.ndarray) -> float:
        """See `steps.Workload`."""
        return largest_error(results, today.astype(np.float64)) / (2 * LIMIT)


def _rungs(layer: str, conv1d: str = "", matmul: str = "") -> dict[str, str]:
    """The forced rungs of a step; with an empty name the default rung runs."""
    named = {"embedding_conv1d": layer, "conv1d": conv1d, "matmul": matmul}
    return {op: name for op, name in named.items() if name}


CPU = (
    Step("naive", "five loops per convolution, three per linear layer; one sentence per call, one thread",
         _rungs("cpu.gather", "cpu.naive", "cpu.memory"), threads=1, batch=1),
    Step("SIMD", "the taps of a channel are one vector",
         _rungs("cpu.gather", "cpu.taps", "cpu.memory"), threads=1, batch=1),
    Step("batched", "all sentences in one call, still on one thread",
         _rungs("cpu.gather", "cpu.taps", "cpu.memory"), threads=1),
    Step("register tiles", "a tile of output channels x positions stays in registers; threads take tiles",
         _rungs("cpu.gather", "cpu.channel_tiles", "cpu.memory")),
    Step("linear layers as GEMM", "matrices packed in the order of use, a block in registers; threads take blocks",
         _rungs("cpu.gather", "cpu.channel_tiles", "cpu.packed")),
    Step("convolutions as GEMM", "im2col without its matrix: one product over overlapping rows",
         _rungs("cpu.gather", "cpu.matmul")),
    Step("token table", "each pair of token and tap is multiplied once; a window is a sum of table rows",
         _rungs("cpu.table_sums")),
    Step("vectors and slices", "the sums are vectors, and a slice of the table stays in the last cache"),
)  # fmt: skip
PLAIN: Without = frozenset({"graphs", "overlap", "pinned"})  # a first program on a GPU uses none of these
GPU = (
    Step("naive", "one thread per output of a convolution; one sentence per call",
         _rungs("simt.gather", "simt.naive", "simt.register"), PLAIN, batch=1),
    Step("batched", "all sentences in one call: the grid has a block row per sentence",
         _rungs("simt.gather", "simt.naive", "simt.register"), PLAIN),
    Step("shared memory", "a block keeps a tile of channels, taps and filters in shared memory",
         _rungs("simt.gather", "simt.tiles", "simt.register"), PLAIN),
    Step("linear layers as GEMM", "tiles in shared memory, sums in registers, loads ahead of the products",
         _rungs("simt.gather", "simt.tiles", "simt.buffered"), PLAIN),
    Step("fused", "ReLU and the maximum where the sums are; a weight in a register serves 16 positions",
         _rungs("simt.gather", "simt.fused", "simt.buffered"), PLAIN),
    Step("tensor cores", "im2col: convolutions and linear layers as products of bfloat16 limbs on matrix units",
         _rungs("simt.gather", "tile.limbs"), PLAIN),
    Step("token table", "each pair of token and tap is multiplied once; a window is a sum of table rows",
         _rungs("simt.table_sums"), PLAIN),
    Step("tiles and slices", "one program per sentence; a slice of the table stays in L2", without=PLAIN),
    Step("pinned memory", "logits are copied to page-locked memory", without=frozenset({"graphs"})),
    Step("CUDA graph", "all kernels of a batch are launched at once"),
)  # fmt: skip
MACHINE = "one GPU of a cluster, model not stated"
PUBLISHED = (
    Published("naive conv1d", 8, MACHINE),
    Published("batched input", 43, MACHINE),
    Published("channel tiles in shared memory", 212, MACHINE),
    Published("linear layers as GEMM", 319, MACHINE),
    Published("everything on the GPU", 1015, MACHINE),
    Published("4 GPUs", 3451, "4 GPUs of that cluster"),
    Published("16 GPUs", 12545, "16 GPUs of that cluster"),
)
JOB = Job(
    "sentiment", "sentences",
    "The course's TextCNN at full size on real sentences, with random weights. A step with a token table is timed "
    "after the table has the rows of its sentences.",
    CPU, GPU, {"cpu": 1024, "cuda": 1 << 16}, Sentences, PUBLISHED,
)  # fmt: skip
