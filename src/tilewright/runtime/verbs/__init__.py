"""The verbs that run jobs. Each has a job (what the user wants), a task (its shards) and a worker (shard -> bytes)."""
