"""The short forms of `--size`: each operation has one, which says what its names would."""

import pytest

from tilewright.bench.climb import parts
from tilewright.cli._sizes import SHORT, short_form, sized
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import operations


def case(op, text):
    return sized(op, parts(op)[1].sizes(), text, None)


@pytest.mark.parametrize(
    ("op", "short", "names"),
    [
        ("attention", "2x3x4x5x6", "B=2,H=3,Q=4,T=5,D=6"),
        ("attention", "3x4x5x6", "H=3,Q=4,T=5,D=6"),
        ("batchnorm", "2x3x4", "shape=2x3x4"),
        ("conv1d", "2x8x16-32x3", "B=2,C=8,L=16,O=32,K=3"),
        ("conv1d", "8x16", "C=8,L=16"),
        ("conv3d", "64x32x16-3", "D=64,H=32,W=16,KD=3,KH=3,KW=3"),
        ("conv3d", "64x32x16-3x5x7,mode=reflect", "D=64,H=32,W=16,KD=3,KH=5,KW=7,mode=reflect"),
        ("conv_transpose2d", "16x16x128-64", "H=16,W=16,C=128,O=64"),
        ("conv_transpose2d", "2x16x16x128-64-4", "B=2,H=16,W=16,C=128,O=64,K=4x4"),
        ("correlate", "20x30-3", "shape=20x30,window=3x3"),
        ("correlate", "20x30-3x5", "shape=20x30,window=3x5"),
        ("elementwise", "4x9", "shape=4x9"),
        ("embedding", "4x9-100x8", "shape=4x9,V=100,C=8"),
        ("embedding_conv1d", "2x16-100x8-32", "B=2,L=16,V=100,C=8,O=32"),
        ("layernorm", "4x9", "shape=4x9"),
        ("logprob", "4x5x6", "M=4,N=5,K=6"),
        ("matmul", "4x5x6", "M=4,N=5,K=6"),
        ("matmul_argmax", "4x5x6", "M=4,N=5,K=6"),
        ("pool", "4x3x8-2", "texts=4,longest=3,C=8,gap=2"),
        ("rope", "4x3x8-16", "rows=4,heads=3,pairs=8,rest=16"),
        ("sample", "4x500", "M=4,V=500"),
        ("softmax", " 4x9 ", "shape=4x9"),
    ],
)
def test_a_short_form_is_the_same_size(op, short, names):
    assert case(op, short) == case(op, names)


def test_every_operation_has_a_short_form():
    assert list(SHORT) == sorted(operations())
    assert short_form("conv_transpose2d") == "BxHxWxC-O-K" and short_form("correlate") == "shape-window"


@pytest.mark.parametrize(
    ("op", "text", "says"),
    [
        ("conv3d", "64x64-3", "conv3d: --size 64x64-3: DxHxW-KDxKHxKW is wanted. Write it so, or as NAME=VALUE"),
        ("conv3d", "64x64x64-3x3", "DxHxW-KDxKHxKW is wanted"),
        ("softmax", "4x9-3", "softmax: --size 4x9-3: shape is wanted"),
        ("matmul", "5x6", "MxNxK is wanted"),
        ("matmul", "5x6x0", "--size K=0: at least 1 is wanted"),
        ("conv_transpose2d", "16x16x128-64-4x4x4", "2 integers are wanted"),
        ("conv1d", "8x3-32x9", "leaves no output: K is 9 and L is 3"),
        ("conv3d", "64x64x64_3", "names no size of conv3d; it has D, H, W, KD, .*or DxHxW-KDxKHxKW"),
    ],
)
def test_what_is_no_size_is_refused(op, text, says):
    with pytest.raises(UsageError, match=says):
        case(op, text)
