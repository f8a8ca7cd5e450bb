"""What a ladder on a GPU is checked against and timed beside: a file an operation, found by its name.

truth(case, tensors) -> (exact, allowed): the first rows of the result in float64, and allowed(c), how far each may be
off for a rung whose bound has the constant c. peers(case, tensors) -> name -> call: the vendor's libraries on the same
tensors. An operation without a file is checked against its NumPy reference, and has no peer.
"""
