# ASAP as a service. Build: docker build --tag asap-sharding .
# Run a command: docker run --rm --interactive asap-sharding predict - < examples/llama-3.1-70b-64xh100.json
# With PyTorch for CPU, for dry runs and trials on this machine:
#   docker build --target trainer --tag asap-trainer --build-arg TORCH_INDEX=<PyTorch's index for CPU wheels> .

FROM python:3.11-slim-bookworm AS build
# More than the lock has, with all that the packages name: kubernetes (trials as TrainJobs), xprof (traces of TPUs).
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
WORKDIR /source
# The pinned packages first, with ours empty: they change rarely, so their layer stays cached.
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY locks locks
COPY asap_client asap_client
# Each by its digest, on another machine than the lock's by its version; without what packages name and ASAP does
# without (scripts/lock.py). Uncompiled: of 180 MB of bytecode a quarter is ever read, and is written below.
RUN if [ "$(uname -m)" = x86_64 ]; then cp locks/image.txt packages.txt; \
    else sed -n 's/^\([^# ]*==[^ ]*\).*/\1/p' locks/image.txt > packages.txt; fi \
    && /venv/bin/pip install --no-compile --no-deps -r packages.txt \
    && /venv/bin/pip install --no-compile --no-deps ./asap_client \
    && mkdir service && echo '__version__ = "0"' > service/__init__.py \
    && { [ -z "$EXTRAS" ] || /venv/bin/pip install --no-compile -c constraints.txt ".[$EXTRAS]"; } \
    # Otherwise the next build would take the empty package for the newer one.
    && rm -rf service build ./*.egg-info
COPY asap asap
COPY service service
COPY graph graph
COPY tools tools
COPY kb_seed kb_seed
COPY examples examples
# Installed, then used once, so that what is imported is compiled: the file system is read-only later.
RUN /venv/bin/pip install --no-deps --force-reinstall . \
    && /venv/bin/asap doctor \
    && /venv/bin/asap optimize examples/llama-3.1-70b-64xh100.json > report.txt \
    && /venv/bin/asap diagnose examples/traces/ddp-gloo-straggler --html page.html > report.txt \
    && /venv/bin/python -c 'import graph.agents, langchain_openai, service.server, service.mcp, service.web, \
        service.schedules.night, service.jobs.worker, opentelemetry.sdk.trace' \
    && /venv/bin/pip uninstall --yes setuptools pip

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
RUN /venv/bin/python -m ensurepip \
    && PIP_EXTRA_INDEX_URL=$TORCH_INDEX /venv/bin/python -m pip install --no-cache-dir torch==2.13.0 \
    && /venv/bin/python -m pip install --no-cache-dir setuptools \
    && /venv/bin/python -m pip install --no-cache-dir --no-deps /usr/share/asap/testbed
USER 10001

FROM runtime AS service
# Whether it can do its work, not only that it runs; a container that runs another command has none.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
