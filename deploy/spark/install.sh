#!/bin/sh
# Build a virtual environment with Spark, the data source `ponor` and its jobs from the sources: install.sh SOURCE VENV
# The Dockerfile runs this script. It needs Python >= 3.11 and a C compiler, and works outside of a container. It builds wheels of the members from the sources; requirements/*.lock
# determine all other versions and hashes. Compiled modules are for this Python version and this platform: executors must have the same.
set -eu
source=$1
venv=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# locked NAMES FILE: print these packages of a lock file, with their hashes.
locked() {
  awk -v names="$1" 'BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] }
    /^[a-z0-9]/ { split($1, name, "=="); on = name[1] in wanted }
    on' "$2"
}

# The tools that build wheels, and their dependencies. They are not part of the image.
locked 'cython grpcio grpcio-tools hatchling mypy-protobuf packaging pathspec pluggy protobuf setuptools trove-classifiers types-protobuf typing-extensions' \
  "$source/requirements/dev.lock" > "$work/tools.lock"
# pyspark is published only as a source distribution.
locked pyspark "$source/requirements/spark-image.lock" > "$work/pyspark.lock"
awk '/^[a-z0-9]/ { on = $0 !~ /^pyspark==/ } on' "$source/requirements/spark-image.lock" > "$work/others.lock"
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r "$work/tools.lock"
PATH="$work/tools/bin:$PATH"

# Build in a copy, because the build writes generated code beside the sources.
cp -r "$source/proto" "$source/libs" "$source/spark" "$work"
for member in libs/runtime libs/journal libs/kafka libs/rpc libs/partition libs/s3stream libs/metadata spark; do
  "$work/tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/$member"
done
"$work/tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --require-hashes --wheel-dir "$work/wheels" -r "$work/pyspark.lock"

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r "$work/others.lock"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index "$work"/wheels/*.whl
