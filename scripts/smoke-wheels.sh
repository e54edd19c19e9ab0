#!/usr/bin/env bash
# Builds the wheels of ASAP and of its client into dist/, installs each into an empty environment as its users do, and uses it.
# Called by `make wheels` with the folder of an environment that can build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD built=$1/bin/python scratch=$(mktemp -d)
trap 'cd "$repo" && rm -rf "$scratch" build/lib build/bdist.* asap_client/build' EXIT

rm -f dist/*.whl
"$built" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist ./asap_client .

echo "asap-client: a trainer's environment, with httpx alone"
python3 -m venv "$scratch/trainer"
"$scratch/trainer/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/asap_client-*.whl
(cd "$scratch" && trainer/bin/python -I -c 'from asap_client import client, __version__; client.Client("http://127.0.0.1:9"); print(__version__)')

echo "asap-sharding: a new environment"
python3 -m venv "$scratch/asap"
"$scratch/asap/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/asap_client-*.whl dist/asap_sharding-*.whl
cp examples/llama-3.1-70b-64xh100.json "$scratch"
cd "$scratch"
asap/bin/asap --version
asap/bin/asap predict llama-3.1-70b-64xh100.json
asap/bin/asap optimize llama-3.1-70b-64xh100.json --json | asap/bin/python -c 'import json, sys; report = json.load(sys.stdin); print(len(report["proposals"]), "proposals")'
asap/bin/python -I -c 'from asap import predict; print(predict("llama-3.1-70b-64xh100.json").step_time_s)'
asap/bin/asap kb search "all-reduce of gradients is exposed" | head -n 3
