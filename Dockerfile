# syntax=docker/dockerfile:1
FROM python:3.11.11-slim-bookworm AS build
WORKDIR /build
COPY requirements/bootstrap.txt requirements/node.txt requirements/server.txt requirements/
RUN python -m venv /opt/astromesh \
 && /opt/astromesh/bin/pip install --no-cache-dir --require-hashes -r requirements/bootstrap.txt \
 && /opt/astromesh/bin/pip install --no-cache-dir --require-hashes -r requirements/server.txt \
 && python -m venv /opt/node && /opt/node/bin/pip install --no-cache-dir --require-hashes -r requirements/node.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY scripts/console_libraries.py scripts/
COPY astromesh astromesh
RUN /opt/node/bin/python scripts/console_libraries.py \
 && /opt/astromesh/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/astromesh/bin/python -m compileall -q /opt/astromesh/lib

FROM python:3.11.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /data astromesh && install -d -o astromesh /data
COPY --from=build /opt/astromesh /opt/astromesh
COPY config /config
COPY docker/runtime.yaml /config/runtime.yaml
ENV PATH=/opt/astromesh/bin:$PATH ASTROMESH_CONFIG_DIR=/config ASTROMESH_DATA_DIR=/data PYTHONUNBUFFERED=1
USER astromesh
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
CMD ["astromesh", "serve"]
