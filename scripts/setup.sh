#!/usr/bin/env bash
# Makes a virtual environment and installs pinned packages into it. Called by the Makefile:
#   scripts/setup.sh FOLDER CONSTRAINTS [--lock FILE [--whole]] REQUIREMENT...
# With a lock, each package is checked against the digests in it; it is for Python 3.11 on Linux x86-64, and elsewhere the
# versions of CONSTRAINTS alone are kept. What the lock leaves out (PyTorch) comes by CONSTRAINTS everywhere, unless the
# lock is the whole: then what packages name and ASAP does without stays away.
# Nothing is compiled: Python does so when it first imports a module, and most are never imported.
# A half-made environment from an interrupted run is completed, one whose Python is gone is made anew.
set -euo pipefail

venv=$1 constraints=$2
shift 2
lock= of_ours=()
if [[ $1 == --lock ]]; then
    lock=$2
    shift 2
fi
if [[ $1 == --whole ]]; then
    of_ours=(--no-deps)
    shift
fi

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" python3.11 python3.12 python3 python; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: needs Python 3.11 or 3.12; install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
    return 1
}

make_venv() {
    local python
    python=$(find_python)
    echo "setup: making $venv with $("$python" --version)"
    if ! "$python" -m venv --clear "$venv"; then
        echo "setup: $python cannot make virtual environments; on Debian and Ubuntu install python3-venv" >&2
        return 1
    fi
}

# Passes pip's output on as one line that counts, so that a long download does not look like a hang.
show_progress() {
    local line found=0
    while IFS= read -r line; do
        case $line in
        *Collecting\ * | *Processing\ /*) found=$((found + 1)) ;;
        Installing\ collected*) echo "setup: installing $found packages" ;;
        esac
        if [[ -t 1 ]]; then printf '\rsetup: %d packages found \r' "$found"; fi
    done
}

pip_install() {
    local log="$venv/install.log"
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" 2>&1 |
        tee -a "$log" | show_progress; then
        grep -v '^WARNING' "$log" | tail -n 15 >&2
        echo "setup: pip failed; the whole log is $log" >&2
        return 1
    fi
}

has_lock() {
    [[ $lock && $(uname -sm) == "Linux x86_64" ]] && "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
}

# uv takes a tenth of pip's time. Where it cannot be had, or finds no index since it does not read pip.conf, pip does the same.
install_lock() {
    local checked=(--require-hashes --no-deps -r "$lock")
    echo "setup: installing $(grep -c '==' "$lock") packages by their digests (log: $venv/install.log)"
    if pip_install -c "$constraints" uv &&
        "$venv/bin/uv" pip install --python "$venv/bin/python" "${checked[@]}" >>"$venv/install.log" 2>&1; then
        return
    fi
    echo "setup: uv failed; pip goes on"
    pip_install "${checked[@]}"
}

install_packages() {
    : >"$venv/install.log"
    if has_lock; then
        install_lock
        # Our own packages are built with what the lock brought.
        pip_install --no-build-isolation "${of_ours[@]}" -c "$constraints" "$@"
    else
        echo "setup: resolving pinned packages (log: $venv/install.log)"
        pip_install -c "$constraints" "$@"
    fi
}

supported "$venv/bin/python" || make_venv
install_packages "$@"
echo "setup: done"
