"""The job model: input in numbered shards, a pure function of each, private attempts, committed shards, one output."""
