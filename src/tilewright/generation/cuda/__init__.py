"""Text generation on a GPU: lanes of sequences, the decode state, and drawing tokens on the device."""
