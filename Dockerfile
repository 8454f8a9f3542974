# Run the default job in a container: `docker run --gpus all --shm-size 8g --ulimit memlock=-1 zlaunch`.
# NCCL and gloo exchange data through /dev/shm; the default of 64 MB is too small.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Not pinned, so that security updates of the base image keep working.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        python3 python3-dev python3-venv g++ make git \
        libaio-dev pdsh openssh-client openssh-server iproute2 procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/zlaunch
COPY . .

# The same steps as in a checkout; `make train` also runs the default job.
RUN make .venv/installed

ENV PATH=/opt/zlaunch/.venv/bin:$PATH
CMD ["make", "train"]
