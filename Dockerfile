# Build: docker build -t zlaunch .
# Train: docker run --rm --gpus all --shm-size 8g --ulimit memlock=-1 -v "$PWD:/workspace" zlaunch train my.py
#
# The toolkit of the base image compiles DeepSpeed's ops for the CUDA release of torch in constraints.txt.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Not pinned, so that security updates of the base image keep working.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        python3 python3-dev python3-venv g++ git \
        libaio-dev pdsh openssh-client openssh-server iproute2 iputils-ping procps slurm-wlm munge \
    && rm -rf /var/lib/apt/lists/*

# Gigabytes of packages, in a layer that does not change with the sources.
WORKDIR /opt/zlaunch
ENV PATH=/opt/venv/bin:$PATH
COPY pyproject.toml constraints.txt ./
RUN python3 -m venv /opt/venv \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > dependencies.txt \
    && pip install --no-cache-dir -c constraints.txt -r dependencies.txt

COPY . .
RUN pip install --no-cache-dir --no-deps .

WORKDIR /workspace
ENTRYPOINT ["zlaunch"]
CMD ["--help"]
