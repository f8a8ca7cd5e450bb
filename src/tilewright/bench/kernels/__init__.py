"""What the compilers made of a rung: machine code, registers, shared memory, occupancy, counted traffic."""
