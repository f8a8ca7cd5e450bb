"""HOW it is run, no maths: loading, batches, the job, progress, signals."""
