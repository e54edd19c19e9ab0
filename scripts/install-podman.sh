#!/usr/bin/env bash
# Installs what tests/integration/deploy/test_built_image.py needs to build and run the image: Debian or Ubuntu, as root.
# Called by `make test-image`. Where no registry can be reached, a base of Debian's own Python is made by debootstrap and
# stands in under the name of the one that the Dockerfile starts from.
set -euo pipefail

base=docker.io/library/python:3.11-slim-bookworm
programs=(podman buildah runc debootstrap)

missing() {
    local program
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || return 0
    done
    return 1
}

if missing; then
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        echo "install-podman: needs apt-get, as root; elsewhere install ${programs[*]} by hand" >&2
        exit 1
    fi
    echo "install-podman: installing ${programs[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update >/dev/null
    apt-get install --yes --no-install-recommends "${programs[@]}" >/dev/null
fi

if podman image exists "$base" || timeout 120 podman pull --quiet "$base"; then
    exit 0
fi
echo "install-podman: no registry; debootstrap makes the base"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder/base" >"$folder/log" ||
    { tail "$folder/log" >&2; exit 1; }
ln -s /usr/bin/python3 "$folder/base/usr/local/bin/python"
# A company's own authority, which the packages are then fetched with.
cp --dereference /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/ca-certificates.crt"
if [[ -e /etc/pip.conf ]]; then
    cp /etc/pip.conf "$folder/base/etc/pip.conf"
fi
rm -rf "$folder"/base/var/cache/apt/* "$folder"/base/var/lib/apt/lists/*
container=$(buildah from scratch)
buildah add --quiet "$container" "$folder/base" / >/dev/null
buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python "$container"
buildah commit --quiet --rm "$container" "$base" >/dev/null
