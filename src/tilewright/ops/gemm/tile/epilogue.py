"""The epilogue of a tile of sums: residual, bias, activation."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
SLOPE = tl.constexpr(-2.302208198144325)  # -2 sqrt(2 / pi) log2 e
CUBIC = tl.constexpr(-0.1029432395800235)  # that times 0.044715
HALF_ROOT = tl.constexpr(0.7071067811865476)


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
    elif ACTIVATION == "gelu":
        return tl.where(x < -30, 0.0, 0.5 * x * (1 + tl.erf(x * HALF_ROOT)))
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
