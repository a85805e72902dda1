# Where no registry can be reached: stand-ins for the three images that compose.localstack.yml takes from others, made of
# Debian's and PyPI's packages. They answer to the same variables and ports. See docs/localstack.md.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS postgres
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ 2>/dev/null || true
COPY tests/containers/standin-postgres /usr/local/bin/standin-postgres
USER postgres
ENTRYPOINT ["sh", "/usr/local/bin/standin-postgres"]

FROM ${PYTHON_IMAGE} AS localstack
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends curl && rm -rf /var/lib/apt/lists/*
COPY infra/localstack/requirements.txt /requirements.txt
RUN python3 -m venv /opt/localstack && /opt/localstack/bin/pip install --quiet --no-cache-dir --require-hashes --requirement /requirements.txt
ENV GATEWAY_LISTEN=0.0.0.0:4566 SKIP_SSL_CERT_DOWNLOAD=1 DNS_ADDRESS=0
ENTRYPOINT ["/opt/localstack/bin/python", "-m", "localstack.runtime.main"]

FROM ${PYTHON_IMAGE} AS moto
RUN python3 -m venv /opt/moto && /opt/moto/bin/pip install --quiet --no-cache-dir "moto[server]==5.2.5"
ENTRYPOINT ["/opt/moto/bin/moto_server", "-H", "0.0.0.0"]
