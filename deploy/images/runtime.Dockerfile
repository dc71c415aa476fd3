# A model server. Your own architectures go into an image on top of this one (docs/architectures.md).
# docker build -f deploy/images/runtime.Dockerfile -t REGISTRY/weightshift/runtime:0.1.0 .
# Without a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
# checkov:skip=CKV_DOCKER_2:Kubernetes asks by probes of its own, and never looks at a health check here
FROM docker.io/nvidia/cuda:13.0.3-base-ubuntu24.04@sha256:7c7413a56200486f71f181cad9310f6fd31b6bb21816ade15fc9c1e1e927a5c1 AS python
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3.12 && rm -rf /var/lib/apt/lists/*

FROM python AS build
ARG TORCH_INDEX=https://pypi.org/simple
WORKDIR /source
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3.12-venv && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/weightshift
ENV PATH=/opt/weightshift/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY constraints.txt ./
# PyTorch pins the CUDA libraries it brings; by far the largest layer, and the one that changes least.
RUN pip install --constraint constraints.txt --index-url "${TORCH_INDEX}" --extra-index-url https://pypi.org/simple torch
COPY pyproject.toml README.md worker.py ./
COPY weightshift weightshift
COPY workflows workflows
COPY activities activities
COPY runtime runtime
RUN pip install --constraint constraints.txt '.[runtime]' && python -m compileall -q /opt/weightshift

FROM python
COPY --from=build /opt/weightshift /opt/weightshift
# One thread for each forward, and nothing written beside the scratch volume.
ENV PATH=/opt/weightshift/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp \
    OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 CUDA_CACHE_PATH=/tmp/cuda
WORKDIR /tmp
USER 10001:10001
CMD ["python", "-m", "runtime"]
