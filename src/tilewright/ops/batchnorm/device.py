"""batchnorm on a GPU: what `batchnorm` does when it is handed a torch tensor there."""

from tilewright.errors import UsageError
from tilewright.ops.batchnorm.ladder import ladder
from tilewright.ops.batchnorm.problem import ACTIVATIONS, Problem
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.rows import kinds_of, placed, put_back, vectors_of
from tilewright.ops.core.gpu.tensors import tensor_of


def batchnorm(x, gamma, beta, mean, variance, *, eps: float = 1e-5, activation=None, out=None):
    """activation((x - mean) / sqrt(variance + eps) * gamma + beta), as `tilewright.ops.batchnorm.batchnorm`.

    x: (..., C), the others (C,), each float32, bfloat16 or float16 on one GPU. out: a tensor of x's shape and one of
    the three dtypes to write to; it may be x. None: a new float32 one. Raises UsageError naming the argument that does
    not fit; but a channel whose variance + eps is not above 0 becomes infinite or NaN, since nobody waits for the GPU
    to look at it.
    """
    if tensor_of("batchnorm", "x", x).ndim == 0:
        raise UsageError("batchnorm: x is a single number; (..., C) is wanted")
    one_of("batchnorm", "activation", activation, ACTIVATIONS)
    if not eps >= 0:
        raise UsageError(f"batchnorm: eps is {eps}; it must be at least 0")
    C = x.shape[-1]
    channels = vectors_of("batchnorm", x, C, gamma=gamma, beta=beta, mean=mean, variance=variance)
    x, result, target = placed("batchnorm", x, out)
    if x.numel():
        problem = Problem(C, kinds_of(x, target, *channels), "cuda")
        ladder.choose(problem).run(x.view(-1, C), tuple(channels), eps, activation, target.view(-1, C))
    return put_back(result, target)
