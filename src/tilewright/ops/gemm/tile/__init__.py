"""Matrix products in tiles for NVIDIA GPUs: Triton (`product.py`), and Gluon for Hopper (`hopper.py`).

Weights are kept transposed, (N, K): both operands of a product then lie along K, as the matrix units like them, and
bulk copies fetch whole tiles of them by a descriptor. Elements outside a matrix arrive as zeros.
"""
