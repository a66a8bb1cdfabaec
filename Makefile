# The only runner a fresh machine needs: git, make, a C compiler and Python >= 3.11.
# `make install` builds .venv with everything in it; every other target depends on it.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := 0.13.9
# uv brings its own TLS roots; a machine behind an inspecting proxy trusts the system's.
export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export VIRTUAL_ENV := $(abspath $(VENV))
export PATH := $(abspath $(BIN)):$(PATH)
# Every process of a cluster and of a test would compile all it imports, a second of CPU each, where the environment forbids to keep the result. Out of the sources' sight it is welcome.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode

MEMBERS := libs/runtime libs/journal libs/raft libs/kafka libs/rpc libs/partition libs/s3stream libs/metadata \
           services/controller services/broker services/gc services/compactor libs/simulation simulation cli spark
# What a running cluster needs; Spark's member goes where Spark is.
DEPLOYED := ponor-broker ponor-cli ponor-compactor ponor-controller ponor-gc
GENERATED_FROM := $(shell find proto libs/kafka/schema libs/*/generate.py libs/build_hook.py -type f; find libs spark -name '*.pyx' -o -name '*.pxi')

.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@touch $@

$(VENV)/.locked: $(VENV)/.uv requirements/dev.lock
	$(UV) pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/.spark: $(VENV)/.ready requirements/spark.lock
	$(UV) pip install --quiet --require-hashes -r requirements/spark.lock
	@touch $@

$(VENV)/.ready: $(VENV)/.locked pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS)) $(GENERATED_FROM)
	$(UV) pip install --quiet --no-deps --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

install: $(VENV)/.ready ## make .venv: locked tools, all members, generated code

run: install ## start a cluster on this machine; Kafka clients connect to 127.0.0.1:9092
	exec $(BIN)/ponor up

test: install $(if $(M),,$(VENV)/.compiled) ## all tests of a change but those of `make simulate`; make test M=libs/raft runs those of one member, folder or file
	$(BIN)/pytest -q $(or $(M),-n 3 --dist loadfile --no-loadscope-reorder --ignore tests/simulation)

# Otherwise each worker of `make test` compiles all tests, 20 s of CPU each.
$(VENV)/.compiled: $(VENV)/.ready
	@$(BIN)/pytest -q --collect-only tests >/dev/null & \
	$(BIN)/pytest -q --collect-only libs services simulation cli spark >/dev/null; wait
	@touch $@

hooks: install ## run the fast checks before every commit (.pre-commit-config.yaml)
	$(BIN)/pre-commit install

test-spark: install $(VENV)/.spark ## the tests that need Spark; where no Java is installed, one comes with the packages
	$(BIN)/pytest -q -o 'norecursedirs=.*' tests/spark

check: install ## lint, types, arrows, dependencies, unused code, spelling, protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@for member in $(MEMBERS); do (cd $$member && deptry src --no-ansi --package-module-name-map "ponor-rpc=ponor_rpc|ponor") || exit 1; done
	@# Fields and constants are data; vulture cannot tell which of them a reader needs.
	@! $(BIN)/vulture | grep -E 'unused (class|function|import|method|property)'
	$(BIN)/codespell
	$(BIN)/buf lint
	@# Wire compatibility is promised from the first release on.
	@if git describe --tags --abbrev=0 >/dev/null 2>&1; then \
	  $(BIN)/buf breaking --against ".git#tag=$$(git describe --tags --abbrev=0)"; fi

demo: install ## real Kafka clients on a fresh cluster, and a picture of which objects hold what; a minute
	$(BIN)/python -m tools.demo

spark-demo: install $(VENV)/.spark ## a fresh cluster read by Spark, batch and stream, with a profile and a picture; a minute
	$(BIN)/python -m tools.spark_demo

bench: install ## Ponor beside a real Apache Kafka (make peers): CPU seconds per GB, requests/s, percentiles, ratios
	$(BIN)/python -m tests.benchmarks.main $(BENCH)

bench-isolation: install ## produce latency with and without readers of old data beside it
	$(BIN)/python -m tests.benchmarks.isolation

peers: install ## fetch a real Kafka 4.3.1, its tools, Connect, Streams and four ages of Java clients into build/peers (needs Java and Maven)
	-$(BIN)/python -m tests.peers.artifacts

oracle: install ## the oracle's stories told to a real Kafka: are the recordings still true? RECORD=1 writes them anew
	$(BIN)/python -m tests.oracle.main $(if $(RECORD),--record) $(STORIES)

tools: install ## Kafka's command line tools, Connect, Streams, MirrorMaker 2, Java clients 2.1 to 4.4, kcat and a client in Go against a running cluster; says what it skips
	$(BIN)/pytest -q -rs -o 'norecursedirs=.*' tests/tools

bench-transactions: install ## commits per second, latency and CPU per commit beside a real Apache Kafka, file and object WAL (needs Java and Maven): make bench-transactions BENCH='--rounds 3'
	$(BIN)/python -m tests.benchmarks.transactions $(BENCH)

bench-groups: install ## 100 members settle on 1,000 partitions, and 20 share consumers acknowledge, beside a real Apache Kafka (needs Java and Maven): make bench-groups BENCH='--only consumer share'
	$(BIN)/python -m tests.benchmarks.groups $(BENCH)

bench-turns: install ## the longest event-loop turn at ten times the supported sizes; fails above 20 ms: make bench-turns SCENARIOS='put-keys'
	$(BIN)/python -m tests.benchmarks.turns.main $(SCENARIOS)

bench-quorum: install ## three controllers beside a three-member etcd (skipped with a word where there is none)
	$(BIN)/python -m tests.benchmarks.quorum $(BENCH)

bench-delete-topic: install ## a topic with 200,000 stream objects is deleted while keys are put; fails if the leader changes: make bench-delete-topic BENCH='--objects 1000000'
	$(BIN)/python -m tests.benchmarks.delete_topic $(BENCH)

bench-spark: install $(VENV)/.spark ## Spark's Kafka connector and ours on the same records, in turns (needs Java and Maven): make bench-spark BENCH='--rounds 3'; PONOR_SMALL=1 is a look
	$(BIN)/python -m tests.benchmarks.spark $(BENCH)

bench-footprint: install ## memory per idle connection and of 10,000 partitions, cost of their Metadata
	$(BIN)/python -m tests.benchmarks.footprint

fuzz: install ## every family of decoders under hostile bytes: make fuzz SECONDS=600
	$(BIN)/python -m tests.fuzz.main --seconds $(or $(SECONDS),60)

explore: install ## property tests with examples that nobody drew before, and more seeds; in `make test` they are the same every time
	PONOR_EXPLORE=1 $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m hypothesis
	PONOR_SEEDS=24 $(BIN)/pytest -q -n 3 $(shell grep -l PONOR_SEEDS -r libs services --include='test_*.py')

SWARM_SEEDS := tests/simulation/test_swarm.py::test_a_cluster_keeps_all_invariants_and_becomes_quiescent# what `ponor simulate` does anyway

simulate: install ## seeds under simulation, whole clusters under a swarm of faults first: make simulate SEEDS=200
	$(BIN)/ponor simulate --seeds $(or $(SEEDS),60) --workers 2
	PONOR_SEEDS=$$(( $(or $(SEEDS),60) / 4 )) $(BIN)/pytest -q -n 2 --deselect $(SWARM_SEEDS) tests/simulation

simulate-seed: install ## one seed again, exactly as it was: make simulate-seed SEED=17; FAULTS='3,7' for some of its faults
	$(BIN)/ponor simulate --seed $(SEED) $(if $(FAULTS),--faults '$(FAULTS)')

simulate-replay: install ## twenty seeds, each in two processes that hash differently: the traces must be equal
	PONOR_REPLAYED_SEEDS=$(or $(SEEDS),20) $(BIN)/pytest -q --timeout 1200 tests/simulation/test_swarm.py -k hashes

acceptance: install ## the promises at full size: a million records, dozens of kills, gigabytes; half an hour
	$(BIN)/pytest -q -s -o 'norecursedirs=.*' tests/acceptance

nightly: ## the long ones: ten minutes of fuzzing per family, more seeds, full sizes, a real Kafka, figures
	$(MAKE) fuzz SECONDS=600
	$(MAKE) explore
	$(MAKE) simulate SEEDS=500
	$(MAKE) acceptance
	$(MAKE) peers oracle tools
	$(MAKE) test-spark
	$(MAKE) bench-turns bench bench-transactions bench-groups bench-isolation bench-footprint bench-quorum bench-delete-topic bench-spark

format: install ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

EXPORTED := --quiet --no-emit-workspace --no-annotate --no-header --no-emit-index-url --format requirements.txt

lock: $(VENV)/.uv ## resolve the dependencies anew and write requirements/*.lock
	$(UV) lock --upgrade
	$(UV) export $(EXPORTED) --all-packages --no-default-groups --group dev -o requirements/dev.lock
	$(UV) export $(EXPORTED) --all-packages --no-default-groups --group dev --group spark -o requirements/spark.lock
	$(UV) export $(EXPORTED) --package ponor-spark $(addprefix --extra ,spark lakehouse registry pictures audit) --no-dev -o requirements/spark-image.lock
	$(UV) export $(EXPORTED) $(addprefix --package ,$(DEPLOYED)) --no-dev -o requirements/runtime.lock
	rm -f uv.lock

clean: ## remove what the targets made, except data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache libs/rpc/src/ponor libs/kafka/src/ponor_kafka/messages

.PHONY: help install run test hooks test-spark check peers oracle tools bench bench-transactions bench-groups bench-isolation bench-footprint bench-turns bench-quorum bench-delete-topic bench-spark demo spark-demo fuzz explore simulate simulate-seed simulate-replay acceptance nightly format lock clean
