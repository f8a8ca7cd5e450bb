"""The job protocol. The input is divided into numbered shards. A worker computes a pure function of each shard in a
private file, and commits it by a rename. The merge joins the committed shards into one output."""
