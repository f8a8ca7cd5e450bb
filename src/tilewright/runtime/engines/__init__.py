"""Engines only run shards: in this process, in supervised processes of this machine, or in the ranks of MPI."""
