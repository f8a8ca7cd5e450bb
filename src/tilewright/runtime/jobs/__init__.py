"""The job protocol. The input is divided into numbered shards. A worker computes the output of a shard, which depends
only on the shard, and writes it to a private file. Renaming this file commits the shard. The merge joins the committed
shards into one output."""
