#!/bin/sh
# Build a virtual environment that runs every service from the sources: install.sh SOURCE VENV
# The Dockerfile runs this script. It needs Python >= 3.11 and a C compiler, and works outside of a container. requirements/*.lock determine all versions and hashes.
set -eu
source=$1
venv=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The tools that build wheels, and their dependencies, with the hashes of the lock file. They are not part of the image.
tools='cython grpcio grpcio-tools hatchling mypy-protobuf packaging pathspec pluggy protobuf setuptools trove-classifiers types-protobuf typing-extensions'
awk -v names="$tools" 'BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] }
  /^[a-z0-9]/ { split($1, name, "=="); on = name[1] in wanted }
  on' "$source/requirements/dev.lock" > "$work/tools.lock"
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r "$work/tools.lock"
PATH="$work/tools/bin:$PATH"

cp -r "$source/proto" "$source/libs" "$source/services" "$source/cli" "$work"
for member in libs/runtime libs/journal libs/raft libs/kafka libs/rpc libs/partition libs/s3stream libs/metadata \
  services/controller services/broker services/gc services/compactor cli; do
  "$work/tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$work/wheels" "$work/$member"
done

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$source/requirements/runtime.lock"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index "$work"/wheels/*.whl
