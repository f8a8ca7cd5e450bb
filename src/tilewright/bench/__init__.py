"""How things are measured: the protocol, the machine's measured limits, peers, result files and the report."""
