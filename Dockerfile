# Images of tilewright for a CPU and for NVIDIA GPUs:
#   docker build --target cpu -t tilewright:cpu .
#   docker build --target gpu -t tilewright:gpu .
# Podman and Buildah read the same file.

FROM python:3.12-slim AS base
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
# Only the user of the process may change the cache of compiled kernels.
RUN mkdir -m 700 /cache
ENV TILEWRIGHT_CACHE=/cache PYTHONUNBUFFERED=1
WORKDIR /work
ENTRYPOINT ["tilewright"]

FROM base AS gpu
# Triton compiles the code that starts its kernels with a C compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir '/src[cloud,gpu,mpi,parquet,volume,zstd]'

FROM base AS cpu
RUN pip install --no-cache-dir '/src[cloud,mpi,parquet,volume,zstd]'
