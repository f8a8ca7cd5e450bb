"""The commands that run jobs ("verbs"). Each has a job (options), a task (the shards) and a worker (runs a shard)."""
