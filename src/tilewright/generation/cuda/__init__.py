"""Text generation on a GPU: lanes of sequences, the decode state, and sampling of tokens on the device."""
