"""What the compilers made of a rung: machine code, registers, shared memory, occupancy, and counted memory traffic."""
