# The main job in a container: `docker run --gpus all --shm-size 8g --ulimit memlock=-1 zlaunch`.
# NCCL and gloo exchange data through /dev/shm, whose default of 64 MB is too small for them.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Versions are those of the base image: pinning them would break every security update.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        python3 python3-dev python3-venv g++ make git \
        libaio-dev pdsh openssh-client openssh-server iproute2 procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/zlaunch
COPY . .

# The same steps as in the Makefile, which also runs the main job.
RUN make .venv/installed

ENV PATH=/opt/zlaunch/.venv/bin:$PATH
CMD ["make", "train"]
