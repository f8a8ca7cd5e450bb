"""CPU kernels of logprob."""
