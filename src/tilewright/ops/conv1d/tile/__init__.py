"""conv1d on matrix units of NVIDIA GPUs."""
