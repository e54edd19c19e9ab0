#!/usr/bin/env bash
# Installs what tests/integration/launch needs for a real Slurm on one machine: Debian or Ubuntu, as root.
# Called by `make test-slurm`; does nothing where Slurm is installed already. No service is started or enabled.
#   scripts/install-slurm.sh [--accounting]    with --accounting also slurmdbd and MariaDB, for sacct
set -euo pipefail

programs=(slurmctld slurmd sbatch munged)
packages=(slurmctld slurmd slurm-client munge)
if [[ ${1:-} == --accounting ]]; then
    programs+=(slurmdbd mariadbd)
    packages+=(slurmdbd mariadb-server)
fi

missing() {
    local program
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || return 0
    done
    return 1
}

if ! missing; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "install-slurm: needs apt-get; elsewhere install ${packages[*]} by hand" >&2
    exit 1
fi
if [[ $(id -u) -ne 0 ]]; then
    echo "install-slurm: must run as root, as the cluster of the test does: sudo make test-slurm" >&2
    exit 1
fi

# The packages would start daemons with no configuration; 101 forbids it (Debian policy, invoke-rc.d).
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
echo "install-slurm: installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --no-install-recommends "${packages[@]}" >/dev/null ||
    { apt-get update >/dev/null && apt-get install --yes --no-install-recommends "${packages[@]}" >/dev/null; }
echo "install-slurm: $(slurmctld -V || PATH=$PATH:/usr/sbin slurmctld -V)"
