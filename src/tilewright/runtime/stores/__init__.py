"""Jobs on object stores: inputs and models are downloaded, and a job's shards and output are stored as objects."""
