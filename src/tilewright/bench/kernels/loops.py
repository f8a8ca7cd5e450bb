"""Find the inner loop of a kernel in its assembly text: x86, ARM or PTX."""

from __future__ import annotations

import re
from dataclasses import dataclass

LABEL = re.compile(r"([.$\w]+):")
JUMP = re.compile(r"(?:@!?%p\d+\s+)?(?:j[a-z]+|b|b\.\w+|cbnz|cbz|tbnz|tbz|bra(?:\.uni)?)\s(?:.*[\s,])?([.$\w]+);?$")
# AT&T syntax names the destination last, ARM and PTX first
FUSED = re.compile(r"(vf(?:n?m)(?:add|sub)\d+\w+|vdpbf16ps|tdp\w+|fmla|fmls|fmadd|fma\.\S+|(?:wgmma\.)?mma\S+)\s")
PRODUCT, SUM = (
    re.compile(r"(v?mul[sp][sdh]|fmul|mul\.(?:\w+\.)*f\d+)\s"),
    re.compile(r"(v?add[sp][sdh]|fadd|add\.\S*f\d+)\s"),
)
SCALAR = re.compile(r"v?\w+s[sdh]$")
VECTOR = re.compile(r"%([xyzt]mm)(\d+)")
ARM_VECTOR = re.compile(r"\b([vqsd])(\d+)\b")
BITS = {"xmm": 128, "ymm": 256, "zmm": 512, "tmm": 8192, "v": 128, "q": 128, "d": 64, "s": 32}  # of a register
SCALAR_BITS = {"s": 32, "d": 64, "h": 16}  # by the last letter of an x86 instruction


@dataclass(frozen=True)
class Loop:
    """One loop of machine code.

    lines: its instructions. multiply_adds: their number in one pass of the loop. A multiplication followed by an
    addition counts, too. fused: whether they are fused instructions. bits: width of their widest operand, 0 in PTX.
    registers: number of vector registers in the loop; 0 in PTX, whose registers are virtual. sums: number of registers
    that only multiply-adds write, so they hold sums from one pass to the next.
    """

    lines: tuple[str, ...]
    multiply_adds: int
    fused: bool
    bits: int
    registers: int
    sums: int

    @property
    def weight(self) -> tuple[int, int]:
        """The sort key of loops: first the sums that stay in registers, then the multiply-adds, both times their
        width."""
        return self.sums * max(self.bits, 1), self.multiply_adds * max(self.bits, 1)

    @property
    def described(self) -> str:
        """The loop in words."""
        one = self.multiply_adds == 1
        if self.fused:
            pairs = "multiply-add" if one else "multiply-adds"
        else:
            pairs = "multiplication, with an addition," if one else "multiplications, each with an addition,"
        kind = "" if not self.bits else "scalar " if self.bits <= 64 else f"{self.bits}-bit "
        words = f"{self.multiply_adds} {kind}{pairs} in {len(self.lines) - 1} instructions"
        named = f"; it uses {self.registers} vector registers, {self.sums} of them for sums" if self.registers else ""
        return words + named


def inner_loop(assembly: str) -> Loop | None:
    """The innermost loop with the most multiply-adds; None if no loop has one."""
    loops = [loop for loop in map(_counted, _innermost(assembly.splitlines())) if loop.multiply_adds]
    return max(loops, key=lambda loop: loop.weight, default=None)


def _innermost(lines: list[str]) -> list[list[str]]:
    """The lines from a label to a jump back to it, without loops around other loops."""
    labels = {match[1]: number for number, line in enumerate(lines) if (match := LABEL.match(line))}
    spans = set()
    for number, line in enumerate(lines):
        match = JUMP.match(line.strip())
        if match and labels.get(match[1], number) < number:
            spans.add((labels[match[1]], number))
    ordered = sorted(spans)
    inner = [
        (start, end)
        for start, end in ordered
        if not any((start, end) != other and start <= other[0] and other[1] <= end for other in ordered)
    ]
    return [lines[start : end + 1] for start, end in inner]


def _counted(lines: list[str]) -> Loop:
    """Count the instructions of one loop."""
    words = [" ".join(line.split()) for line in lines]
    words = [word for word in words if word and not word.startswith(("//", "#", ".loc"))]
    fused = [word for word in words if FUSED.match(word)]
    products, additions = [word for word in words if PRODUCT.match(word)], [word for word in words if SUM.match(word)]
    arithmetic = fused or products[: min(len(products), len(additions))]
    adding = fused or additions
    others = {_target(word) for word in words if word not in adding}
    sums = {target for word in adding if _accumulates(word) and (target := _target(word)) and target not in others}
    registers = {register for word in words for register in _registers(word)}
    return Loop(
        tuple(words), len(arithmetic), bool(fused), max(map(_bits, arithmetic), default=0), len(registers), len(sums)
    )


def _operands(word: str) -> list[str]:
    return [operand.strip(" ;{}") for operand in re.split(r",\s*(?![^(\[]*[)\]])", word.partition(" ")[2])]


def _target(word: str) -> str:
    """The vector register that an instruction writes, "" if there is none."""
    operands = _operands(word)
    found = _registers(operands[-1] if "%" in word else operands[0])
    return found[-1] if len(found) == 1 else ""


def _accumulates(word: str) -> bool:
    """True for a fused multiply-add, and for an addition that reads the register to which it writes."""
    return bool(FUSED.match(word)) or _registers(word).count(_target(word)) > 1


def _registers(word: str) -> list[str]:
    """The vector registers that an instruction names, without their width; none in PTX."""
    named = VECTOR.findall(word) if "%" in word else ARM_VECTOR.findall(word)
    return [("t" if kind == "tmm" else "") + number for kind, number in named]


def _bits(word: str) -> int:
    """The width of an instruction's arithmetic, 0 in PTX."""
    name = word.split()[0]
    if named := VECTOR.findall(word):
        scalar = not name.startswith("tdp") and SCALAR.match(name)
        return SCALAR_BITS[name[-1]] if scalar else max(BITS[kind] for kind, _ in named)
    named = [] if "%" in word else ARM_VECTOR.findall(word)
    return max((BITS[kind] for kind, _ in named), default=0)
