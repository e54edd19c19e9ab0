#!/usr/bin/env bash
# Sees to it that there is a Chromium for the tests of the pages and for `make screenshots`. Where it cannot be
# installed this says so and succeeds: the tests are then skipped with that reason.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "chromium: installing by apt"
    export DEBIAN_FRONTEND=noninteractive
    apt() { timeout 300 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20 "$@" >/dev/null; }
    if apt update && apt install -y --no-install-recommends chromium; then
        exit 0
    fi
fi
echo "chromium: not found and not installed here; on Debian and Ubuntu: apt-get install chromium" >&2
