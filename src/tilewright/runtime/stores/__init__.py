"""Jobs on object stores: inputs and models are copied from there, and a job's shards and output are kept there."""
