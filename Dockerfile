# The asap command in a small image. Build: docker build -t asap .
# Run: docker run --rm -i asap predict - < examples/llama-3.1-70b-64xh100.json

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY service service
COPY graph graph
COPY tools tools
COPY kb_seed kb_seed
RUN /venv/bin/pip install -c constraints.txt .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home asap
COPY --from=build /venv /venv
COPY examples /data/examples
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER asap
WORKDIR /data
# Only says that the command starts; the service gets a check of its own when it exists.
HEALTHCHECK --interval=60s --timeout=5s --retries=3 CMD ["asap", "--version"]
ENTRYPOINT ["asap"]
CMD ["--help"]
