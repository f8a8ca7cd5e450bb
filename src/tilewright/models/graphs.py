"""CUDA graphs for GPT-2, which has no backend of this package yet."""

from tilewright.backends.cuda import captured as captured
