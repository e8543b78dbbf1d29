# `make` alone prints the targets. Everything that is needed is set up in .venv by whatever target needs it.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
BIN := .venv/bin
SERVICES := services/coordinator services/dispatcher services/operator services/pipeline services/taskmanager
SEEDS ?= 10000
ROUNDS ?= 20
CYCLES ?= 200
LEADER ?= 50
MINUTES ?= 60
RATE ?= 50000
IMAGES ?= penstock
TAG ?= dev
HOME_OF_FLINK ?= flink

# Two fifths of pip's work, and hardly any again. Pip is left to try what uv fails at, such as an index that only pip was told of.
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps

# A group of tests runs in one process (tests/lanes.py), the longest groups first.
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --durations 25

# What a process has compiled, the hundreds of processes that tests start need not compile again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lock demo platform check test servers acceptance lint docs sbom audit bench bench-kafka properties simulate chaos soak k8s flink clean

help: ## Print the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready ## Install the locked requirements into .venv

.venv/.ready: requirements.lock shared/pyproject.toml $(SERVICES:=/pyproject.toml)
	@echo "installing the locked requirements into .venv, which takes a minute or two the first time"
	$(PYTHON) -m venv .venv
	awk '/^[^ ]/ {kept = /^uv==/} kept' requirements.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r .venv/uv.txt
	$(UV_INSTALL) --require-hashes -r requirements.lock || $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/uv pip uninstall --quiet --python $(BIN)/python penstock  # what an older environment has the library installed as
	$(UV_INSTALL) --no-build-isolation $(addprefix --editable ,shared $(SERVICES))
	@touch $@

lock: ## Write requirements.lock anew from the pyproject files
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-package penstock-streaming \
		--extra cluster --extra connect --extra iceberg --extra kubernetes --extra lineage --extra postgres --extra rocksdb --extra testing --extra tracing \
		--group pyproject.toml:dev \
		shared/pyproject.toml $(SERVICES:=/pyproject.toml) --output-file requirements.lock
	grep '==' requirements.lock | tr -d '\\' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --no-emit-package penstock-streaming --extra cluster --extra rocksdb --extra tracing --constraint - shared/pyproject.toml \
		$(addsuffix /pyproject.toml,$(filter-out services/operator services/pipeline,$(SERVICES))) --output-file infra/images/requirements.txt
	grep '==' requirements.lock | tr -d '\\' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --no-emit-package penstock-streaming --extra cluster --extra lineage --extra rocksdb --extra spark --constraint - \
		shared/pyproject.toml services/pipeline/pyproject.toml --output-file infra/images/requirements-pipeline.txt
	grep '==' requirements.lock | tr -d '\\' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --no-emit-package penstock-streaming --extra cluster --extra kubernetes --constraint - \
		shared/pyproject.toml services/coordinator/pyproject.toml --output-file infra/images/requirements-coordinator.txt
	grep '==' requirements.lock | tr -d '\\' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --no-emit-package penstock-streaming --extra cluster --extra kubernetes --constraint - \
		shared/pyproject.toml services/operator/pyproject.toml --output-file infra/images/requirements-operator.txt
	echo zensical | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--constraint requirements.lock - --output-file infra/images/requirements-documentation.txt

demo: setup ## Run the first example on 20,000 real flights, here and on Spark, and compare the rows
	@echo "running examples/departures.py embedded, in one process that needs nothing but Python"
	$(BIN)/penstock run --fresh examples/departures.py
	@echo "the result lies in out/departures; its first lines:"
	@cat out/departures/part-* | head -n 3
	@if ! command -v java >/dev/null && ! test -x "$$JAVA_HOME/bin/java"; then \
		echo "the same file runs on Spark where there is Java 17 (none is found): see docs/spark.md"; exit; fi; \
	set -e; echo "running the same file on Spark, which takes half a minute to start"; $(BIN)/penstock run examples/departures.py --engine spark --param out=out/departures-spark; \
	sort out/departures/part-* > out/departures.rows; sort out/departures-spark/part-* | diff out/departures.rows -; \
	echo "Spark gave the same $$(wc -l < out/departures.rows) rows: out/departures-spark"
	@echo "next: docs/tutorial.md kills this run and resumes it, then starts a cluster"

platform: setup ## Fetch what the tests' Kafka, MinIO and Redis run from, into ~/.cache/penstock, and install Chromium (once)
	@command -v redis-server >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq redis-server; }
	@command -v chromium-headless-shell chromium >/dev/null || test -n "$$PENSTOCK_CHROMIUM" || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends chromium-headless-shell fonts-inter; }
	$(BIN)/penstock up --fetch-only
	@command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java" || exit 0; $(BIN)/python -m tests.class_archives

test: setup ## Run the tests that start nothing but Python (the first of three lanes; see tests/lanes.py)
	$(PYTEST) --lane python -n 3

servers: platform ## Run the tests with Kafka, MinIO, Redis, Postgres, OpenSearch, Spark and Chromium
	$(PYTEST) --lane servers -n 3

acceptance: platform ## Run the tests with containers, Helm and Prometheus, the chaos run, and state with incremental checkpoints
	@for program in promtool dockerd mmdebstrap docker-compose; do command -v $$program >/dev/null || missing=1; done; \
		test -z "$$missing" || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { apt-get update -qq && \
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends \
		prometheus docker.io iptables mmdebstrap docker-compose; }
	for tool in helm kubeconform; do infra/standins/gotool.sh $$tool || exit 1; done
	$(PYTEST) --lane acceptance -n 3 --randomly-dont-reorganize

check: setup ## Check what was changed since the last commit, in a minute: format, style, types, imports and the nearest tests
	$(BIN)/python -m tools.check

lint: setup ## Check format, style, types and import rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/oxlint --deny-warnings --ignore-pattern '**/vendor/**' services/dispatcher/src/penstock_dispatcher/dashboard
	$(BIN)/python -m tools.docstring_names

docs: setup ## Build the documentation site into build/site, without network; a warning is an error
	$(BIN)/python -m tools.site

sbom: setup ## Write what is in the images, from their locks, into build/sbom (CycloneDX, without network)
	@mkdir -p build/sbom
	for part in requirements requirements-coordinator requirements-operator requirements-pipeline; do \
		$(BIN)/cyclonedx-py requirements infra/images/$$part.txt --output-reproducible --of JSON -o build/sbom/$$part.json || exit 1; done

audit: ## Ask PyPI which of the locked packages have known vulnerabilities; what it does not know is an error, too
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit==2.10.1
	for lock in requirements.lock infra/images/requirements*.txt; do \
		build/audit/bin/pip-audit --strict --disable-pip --require-hashes -r $$lock || exit 1; done

bench: setup ## Measure the data path beside Polars and DuckDB, from Kafka to Kafka, and on Spark
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.kafka --if-there
	$(BIN)/python -m benchmarks.spark --if-there
	$(BIN)/python -m benchmarks.spark_kafka --if-there

bench-kafka: platform ## Measure windows and filters from Kafka to Kafka, latency and idle cost
	$(BIN)/python -m benchmarks.kafka
	$(BIN)/python -m benchmarks.live
	$(BIN)/python -m benchmarks.idle

properties: platform ## Play every property test ROUNDS (20) times, each time with fresh histories
	for round in $$(seq $(ROUNDS)); do $(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/acceptance \
		-m hypothesis --hypothesis-profile fresh --quiet || exit 1; done

simulate: setup ## Search SEEDS (10000) fresh histories of the protocol, and a tenth as many of the services
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)
	$(BIN)/python -W ignore -m tests.simulation.shells --seeds $$(( ($(SEEDS) + 9) / 10 ))

chaos: platform ## Kill everything CYCLES (200) times, LEADER (50) of them the leader, and compare every row
	$(BIN)/python -m tests.chaos --cycles $(CYCLES) --leader $(LEADER)

soak: platform ## Run two jobs at RATE (50000) orders a second for MINUTES (60); compare every window, watch memory and lag
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --rate $(RATE)

k8s: setup ## Try the chart on the Kubernetes of the current kubectl context (IMAGES=repository TAG=tag)
	$(BIN)/python -m tests.k8s --images $(IMAGES) --tag $(TAG)

flink: platform ## Use Flink's own command line and pages, unmodified, at a dispatcher (HOME_OF_FLINK=folder)
	$(BIN)/python -m tests.flink --home $(HOME_OF_FLINK)

clean: ## Remove what was built and what runs left
	rm -rf .venv build .cache out .penstock .pytest_cache .ruff_cache .hypothesis
