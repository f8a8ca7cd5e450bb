"""Matrix products in tiles for NVIDIA GPUs: Triton (`product.py`), and Gluon for Hopper (`hopper.py`).

Weights are stored transposed, (N, K): rows of both operands then run along K, as matrix units read them. Bulk copies
load whole tiles by a descriptor. Elements outside a matrix are loaded as zeros.
"""
