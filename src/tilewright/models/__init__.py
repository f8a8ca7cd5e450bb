"""The networks: one file per model family, which uses only operations and weights."""
