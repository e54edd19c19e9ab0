#!/usr/bin/env bash
# Called by `make demo`: a complete session on a real profile, and a plan for a 70B model, seen in the browser.
#   scripts/demo.sh ASAP
set -euo pipefail

asap=$1
export ASAP_DATA_DIR=${ASAP_DATA_DIR:-build/demo}
mkdir -p "$ASAP_DATA_DIR"
log=$ASAP_DATA_DIR/serve.log

show() {
    echo
    echo "\$ asap $*"
    "$asap" "$@"
}

# The address is printed once it listens. A port of its own, so that nothing that runs already is in the way.
exec 3< <(exec "$asap" serve --port "${PORT:-0}" --json 2> "$log")
server=$!
stop() {
    kill "$server" 2> /dev/null || return 0
    while kill -0 "$server" 2> /dev/null; do sleep 0.1; done
}
trap stop EXIT
read -r started <&3 || { tail -n 3 "$log" >&2; exit 1; }
address=$(sed 's/.*"address": "\([^"]*\)".*/\1/' <<< "$started")
export ASAP_SERVER=$address

show diagnose examples/traces/ddp-gloo-straggler
show sessions submit examples/profiled-run.json --upload --wait
show optimize examples/llama-3.1-70b-64xh100.json --server "$address"

echo
"$asap" sessions list
echo
echo "In the browser: $address (both sessions, what the agents did, the traces, what-if)"
echo "Next: source .venv/bin/activate; asap --help; README.md"
if [[ -t 0 && -t 1 ]]; then
    echo "The server runs until you press Ctrl-C; later: ASAP_DATA_DIR=$ASAP_DATA_DIR asap serve"
    trap 'exit 0' INT
    wait "$server" || true
else
    echo "It stops now; ASAP_DATA_DIR=$ASAP_DATA_DIR asap serve starts it again."
fi
