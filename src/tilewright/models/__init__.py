"""WHICH network: one file a model, only ops and weights."""
