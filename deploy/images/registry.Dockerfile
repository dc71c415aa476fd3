# The registry's HTTP service and its migrations.
# docker build -f deploy/images/registry.Dockerfile -t REGISTRY/weightshift/registry:0.1.0 .
# checkov:skip=CKV_DOCKER_2:Kubernetes asks by probes of its own, and never looks at a health check here
FROM docker.io/library/python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS python

FROM python AS build
WORKDIR /source
RUN python -m venv /opt/weightshift
ENV PATH=/opt/weightshift/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY constraints.txt pyproject.toml README.md worker.py ./
COPY weightshift weightshift
COPY workflows workflows
COPY activities activities
COPY runtime runtime
RUN pip install --constraint constraints.txt . && python -m compileall -q /opt/weightshift

FROM python
COPY --from=build /opt/weightshift /opt/weightshift
ENV PATH=/opt/weightshift/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 10001:10001
CMD ["python", "-m", "weightshift.registry.service"]
