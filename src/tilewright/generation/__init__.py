"""Text generation with any decoder: batches, sampling parameters, rules and random numbers. See `engine`."""
