"""Runs models as jobs: loading, shards, engines, progress, signals. The mathematics is in `ops`."""
