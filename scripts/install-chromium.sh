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
    if timeout 300 bash -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium' >/dev/null; then
        exit 0
    fi
fi
echo "chromium: not found and not installed here; on Debian and Ubuntu: apt-get install chromium" >&2
