"""Text generation with any decoder: batches, sampling parameters, their rules, and random numbers. See `engine`."""
