"""The epilogue of a tile of sums: residual, bias, activation; the largest of each PEAK columns."""

import triton
import triton.language as tl

from tilewright.ops.gemm import operands

PEAK, SECTOR = tl.constexpr(operands.PEAK), tl.constexpr(operands.SECTOR)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
SLOPE = tl.constexpr(-2.302208198144325)  # -2 sqrt(2 / pi) log2 e
CUBIC = tl.constexpr(-0.1029432395800235)  # that times 0.044715
HALF_ROOT = tl.constexpr(0.7071067811865476)
HALF_LOG2E = tl.constexpr(-0.7213475204444817)  # -log2 e / 2
# erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), within 1.5e-7; Abramowitz and Stegun, "Handbook of
# Mathematical Functions", 1964, 7.1.26. The error of GELU is below 8e-8 |x|, less than a rounding of the sum.
ERFC_P, ERFC_1, ERFC_2 = tl.constexpr(0.3275911), tl.constexpr(0.254829592), tl.constexpr(-0.284496736)
ERFC_3, ERFC_4, ERFC_5 = tl.constexpr(1.421413741), tl.constexpr(-1.453152027), tl.constexpr(1.061405429)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """One of matmul's activations, float32; a NaN stays."""
    if ACTIVATION == "relu":
        return tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "tanh":  # to 3 ulp: a series near zero, where the quotient of exponentials cancels
        s = x * x
        near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
        power = tl.exp(tl.abs(x) * -2)
        far = (1 - power) / (1 + power)
        return tl.where(s < 0.0625, near, tl.where(x < 0, -far, far))
    elif ACTIVATION == "gelu":  # max(x, 0) - |x| erfc(|x| / sqrt 2) / 2: nothing cancels
        size = tl.minimum(tl.abs(x), 30.0)
        below = 1 + size * (HALF_ROOT * ERFC_P)
        if INTERPRETED:
            t, power = 1 / below, tl.exp2(size * size * HALF_LOG2E)
        else:
            t = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [below], tl.float32, True, 1)
            square = size * size * HALF_LOG2E
            power = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [square], tl.float32, True, 1)
        series = t * (ERFC_1 + t * (ERFC_2 + t * (ERFC_3 + t * (ERFC_4 + t * ERFC_5))))
        return tl.where(x < 0, 0.0, x) - size * (0.5 * series * power)
    elif ACTIVATION == "gelu_tanh":  # x (1 + tanh t) / 2 = x / (1 + exp(-2 t)): nothing cancels
        power = x * (x * x * CUBIC + SLOPE)  # to base 2; a GPU's instructions for 2^x and 1 / x are good to 2 ulp
        if INTERPRETED:
            return tl.maximum(x, -30.0) / (1 + tl.exp2(tl.minimum(power, 126.0)))
        else:
            power = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
            return tl.maximum(x, -30.0) * tl.inline_asm_elementwise(
                "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + power], tl.float32, True, 1
            )
    else:
        return x


@triton.jit
def finish(totals, rows, columns, extras, sizes, ACTIVATION: tl.constexpr):
    """activation(totals + residual + bias) of a tile. rows, columns: its indices in out. extras, sizes: see
    `records`."""
    if extras.residual is not None:
        inside = (rows < sizes.M)[:, None] & (columns < sizes.N)[None, :]
        pointers = extras.residual + rows.to(tl.int64)[:, None] * sizes.N + columns[None, :]
        totals += tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    if extras.bias is not None:
        totals += tl.load(extras.bias + columns, mask=columns < sizes.N, other=0.0).to(tl.float32)[None, :]
    return activate(totals, ACTIVATION)


@triton.jit
def larger(x, y):
    """The larger of two, NaN if one is NaN: one instruction."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks_of(N):
    """See `operands.peaks_of`."""
    return tl.cdiv(N, PEAK * SECTOR) * SECTOR


@triton.jit
def store_peaks(totals, peaks, rows, columns, sizes):
    """Store the largest of each PEAK columns of a tile, see `records.Extras`. rows, columns: as for `finish`."""
    GROUPS: tl.constexpr = totals.shape[1] // PEAK
    x = tl.where((columns < sizes.N)[None, :], totals + totals * 0.0, float("-inf"))  # NaN for an infinity
    best = tl.reduce(tl.reshape(x, (totals.shape[0], GROUPS, PEAK)), 2, larger)
    groups = tl.min(columns, 0) // PEAK + tl.arange(0, GROUPS)
    pointers = peaks + rows.to(tl.int64)[:, None] * peaks_of(sizes.N) + groups[None, :]
    tl.store(pointers, best, mask=(rows < sizes.M)[:, None])
