"""The matrix-product library that eight operations share: packing, loops, epilogues and tiles.

`cpu/` is written in Numba, `tile/` in Triton and Gluon; `simt/` has the epilogue of numba-cuda kernels. `matmul` is its
first user.
"""
