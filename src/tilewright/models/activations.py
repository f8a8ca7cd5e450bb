"""Activation functions: names in a Hugging Face configuration -> names that `matmul` can fuse."""

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
