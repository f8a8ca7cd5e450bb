"""The bench: how times are measured, the machine's limits, other libraries, result files, and the report."""
