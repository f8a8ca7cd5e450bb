"""The options that `tilewright sweep` may change: their names and defaults, and each value of matmul's SIMT rungs."""

import importlib
import inspect
from itertools import product

import pytest

import gpu
from compare import compare
from tilewright.bench.sizes import conv1d
from tilewright.errors import Refused
from tilewright.ops.conv1d import ladder as conv1d_ladder
from tilewright.ops.conv1d.operands import Window
from tilewright.ops.conv1d.simt.form import form_for
from tilewright.ops.core.gpu.limits import threads_for_row
from tilewright.ops.core.ladder import operations, trying
from tilewright.ops.matmul import ladder
from tilewright.ops.matmul.problem import Case, Problem

CASE = Case(10, 18, 34, bias=True, activation="relu", device="cuda")  # two steps along K with a tile of 32
SMALL = Case(5, 7, 18, device="cuda")
PROBLEM = Problem(18, 34, "float32", "cuda")


def rungs_with_options():
    for op in operations():
        for rung in importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs.values():
            if rung.swept:
                yield pytest.param(op, rung, id=f"{op}.{rung.name}")


@pytest.mark.parametrize(("op", "rung"), list(rungs_with_options()))
def test_swept_options_are_keywords_of_the_kernel_and_contain_the_default(op, rung):
    for engine, package in (("simt.", "numba.cuda"), ("tile.", "triton")):
        if rung.name.startswith(engine):
            pytest.importorskip(package)
    parameters = inspect.signature(getattr(rung.run, "func", rung.run)).parameters
    for name, values in rung.swept.items():
        assert parameters[name].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        chosen_by_the_problem = parameters[name].default is None and name not in rung.options
        assert chosen_by_the_problem or rung.options[name] in values, f"{op}.{rung.name}: {name}"


def varied():
    """(rung, its swept options) for each combination of values of matmul's SIMT rungs with several elements per thread
    or a tile."""
    for rung in ladder.rungs.values():
        tiled = rung.name.startswith("simt.") and rung.swept and "block_rows" not in rung.swept
        for values in product(*rung.swept.values()) if tiled else ():
            yield rung.varied(**dict(zip(rung.swept, values, strict=True)))


def threads(rung):
    """Threads of a block."""
    options = rung.options
    if "T" in options:
        return options["T"] * options["V"]
    return options["tile"] ** 2 // options.get("wpt", 1)


def every_value():
    for rung in varied():
        words = "-".join(f"{name}{rung.options[name]}" for name in rung.swept)
        why = rung.refuses(PROBLEM)
        marks = [pytest.mark.skip(reason="; ".join(why))] if why else []
        yield pytest.param(rung, id=f"{rung.name}-{words}", marks=marks)


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize("rung", list(every_value()))
def test_each_value_is_within_the_bound_or_refused(rung, rng):
    if threads(rung) > 1024:
        with pytest.raises(Refused, match="threads; the maximum is 1,024"):
            gpu.check("matmul", rung, CASE, rng)
        return
    gpu.check("matmul", rung, CASE, rng, runs=1)


ROWS = [(op, name) for op in ("batchnorm", "elementwise") for name in ("simt.naive", "simt.vectors")]
TREES = [("softmax", "simt.shared"), ("layernorm", "simt.shared")]  # block changes the order of their sums

QUICK = [("batchnorm", "simt.naive"), ("elementwise", "simt.vectors")]  # the others have the same loop over a row


def rarely(slow):
    """The marks of a case that only `make test-long` runs in the simulator."""
    return [pytest.mark.long] if slow and not gpu.ON_GPU else []


def rows_case(op):
    """A case of one row of 68 elements, more than the smallest block has threads."""
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    if op == "elementwise":
        return spec.Case("tanh", (1, 68), device="cuda")
    return spec.Case((1, 68), device="cuda")


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(
    ("op", "name"), [*(pytest.param(*one, marks=rarely(one not in QUICK)) for one in ROWS), *TREES]
)
def test_each_block_size_is_within_the_bound(op, name, rng):
    rung, case = importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs[name], rows_case(op)
    if why := rung.refuses(case.problem):
        pytest.skip("; ".join(why))
    spec, bits = importlib.import_module(f"tilewright.bench.sizes.{op}"), set()
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    for block in rung.swept["block"]:
        with trying(op, rung.varied(block=block)):
            out = spec.bind_tensors(case, inputs, gpu.PLACE)().cpu().numpy()
        compare(out, reference, spec.bound(case, inputs, reference, rung.c))
        bits.add(out.tobytes())
    assert len(bits) == 1 or (op, name) in TREES
    for block, words in ((2048, "block=2048: a block would have 2,048 threads; the maximum is 1,024"), (0, "block=0")):
        with pytest.raises(Refused, match=words):
            gpu.check(op, rung.varied(block=block), case, rng)
    if (op, name) in TREES:
        with pytest.raises(Refused, match="block=96: a tree over the threads of a block needs a power of two"):
            gpu.check(op, rung.varied(block=96), case, rng)


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize("name", ["simt.strip", "simt.registers"])
def test_tiles_of_matmul_keep_the_bits(name, rng):
    spec, bits = importlib.import_module("tilewright.bench.sizes.matmul"), set()
    inputs, case = spec.make(SMALL, rng), SMALL
    if why := ladder.rungs[name].refuses(case.problem):
        pytest.skip("; ".join(why))
    old = {"tile": 64, "wpt": 8} if name == "simt.strip" else {"T": 16, "V": 4}  # the defaults before
    for rung in (ladder.rungs[name], ladder.rungs[name].varied(**old)):
        with trying("matmul", rung):
            bits.add(spec.bind_tensors(case, inputs, gpu.PLACE)().cpu().numpy().tobytes())
    assert len(bits) == 1


SHAPES = [(8, 8), (32, 8), (8, 32), (3, 5)]  # block_rows, block_columns: beside the default


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize("name", [pytest.param("simt.memory", marks=rarely(True)), "simt.register", "simt.coalesced"])
def test_every_shape_of_a_block_writes_all_of_out_with_the_same_bits(name, rng):
    spec, rung = importlib.import_module("tilewright.bench.sizes.matmul"), ladder.rungs[name]
    if why := rung.refuses(PROBLEM):
        pytest.skip("; ".join(why))
    import torch

    inputs, outs = spec.make(CASE, rng), []
    for rows, columns in [tuple(rung.options[option] for option in rung.swept), *SHAPES]:
        with trying("matmul", rung.varied(block_rows=rows, block_columns=columns)):
            out = torch.full((CASE.M, CASE.N), torch.nan, device=gpu.PLACE)
            spec.bind_tensors(CASE, inputs, gpu.PLACE)(out=out)
        outs.append(out.cpu().numpy())
    reference = spec.reference(CASE, inputs)
    compare(outs[0], reference, spec.bound(CASE, inputs, reference, rung.c))
    assert len({out.tobytes() for out in outs}) == 1


WINDOWS = [(4, 8), (8, 8), (8, 32), (16, 32)]  # filters, rows_per_block: beside the default of conv1d's simt.rows


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("filters", "rows_per_block"), WINDOWS)
def test_conv1d_rows_with_other_blocks(filters, rows_per_block, rng):
    case = conv1d.Case(2, 12, 5, 3, 3, bias=True, activation="relu", pool="max", device="cuda")
    rung = conv1d_ladder.rungs["simt.rows"]
    if why := rung.refuses(case.problem):
        pytest.skip("; ".join(why))
    gpu.check("conv1d", rung.varied(filters=filters, rows_per_block=rows_per_block), case, rng, runs=1)


REFUSED_WINDOWS = [
    ({"filters": 6, "rows_per_block": 16}, "filters must be a multiple of 4, at most 128"),
    ({"filters": 8, "rows_per_block": 12}, "rows_per_block must be 8, 16 or 32"),
    ({"filters": 16, "rows_per_block": 8}, "a block would have 256 filters; the maximum is 128"),
    ({"filters": 0, "rows_per_block": 8}, "each must be a positive integer"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED_WINDOWS)
def test_a_block_of_conv1d_rows_that_cannot_run_is_refused(options, why):
    with pytest.raises(Refused, match=why):
        form_for(12, 3, Window(), True, **options)


def test_conv1d_rows_slides_in_registers_where_the_window_is_short():
    textcnn, spread = form_for(16, 3, Window(), True, 8, 16), form_for(400, 9, Window(dilation=5), True, 8, 16)
    assert (textcnn.positions, textcnn.taps, textcnn.quads, textcnn.depth, textcnn.aligned) == (14, 3, 4, 4, True)
    assert (spread.taps, spread.split, spread.aligned) == (1, 9, False)
    assert not form_for(16, 3, Window(padding=1), True, 8, 16).aligned
    assert not form_for(16, 3, Window(), False, 8, 16).aligned


@pytest.mark.parametrize(("C", "threads"), [(1, 64), (4096, 64), (4097, 1024)])
def test_the_length_of_a_row_alone_chooses_the_block(C, threads):
    assert threads_for_row(C) == threads


REFUSED = [
    ("simt.memory", {"block_rows": 64, "block_columns": 32}, "=64, block_columns=32: a block would have 2,048 threads"),
    ("simt.coalesced", {"block_rows": 0}, "block_rows=0, block_columns=16: each must be a positive integer"),
    ("simt.shared", {"tile": 33}, "tile=33: a block would have 1,089 threads; the maximum is 1,024"),
    ("simt.unrolled", {"tile": 0}, "tile=0: each must be a positive integer"),
    ("simt.strip", {"tile": 64, "wpt": 2}, "tile=64, wpt=2: a block would have 2,048 threads; the maximum is 1,024"),
    ("simt.strip", {"tile": 16, "wpt": 3}, "tile=16, wpt=3: wpt must divide tile"),
    ("simt.strip", {"tile": 1024, "wpt": 1024}, "65,536 bytes of shared memory; the maximum is 49,152"),
    ("simt.registers", {"T": 128, "V": 1}, "T=128, V=1: a block would use 66,048 bytes of shared memory"),
]


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("name", "options", "why"), REFUSED)
def test_a_value_that_cannot_run_is_refused_with_the_reason(name, options, why, rng):
    if missing := ladder.rungs[name].refuses(PROBLEM):
        pytest.skip("; ".join(missing))
    with pytest.raises(Refused) as error:
        gpu.check("matmul", ladder.rungs[name].varied(**options), CASE, rng)
    assert why in str(error.value)


@pytest.mark.usefixtures("simulated_gpu")
def test_a_tile_too_narrow_for_the_grid_is_refused(rng):
    case = Case(1, 65536, 1, device="cuda")
    if missing := ladder.rungs["simt.shared"].refuses(case.problem):
        pytest.skip("; ".join(missing))
    with pytest.raises(Refused, match="needs 65,536 blocks across; the maximum is 65,535"):
        gpu.check("matmul", ladder.rungs["simt.shared"].varied(tile=1), case, rng)
