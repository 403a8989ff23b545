.PHONY: help setup demo test lint generate bench walk clients cluster faults memory fixture spark sim chaos fuzz mutants
.DEFAULT_GOAL := help

PY := .venv/bin/python

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/' | column -t -s:

setup:           ## make .venv and install everything into it
	@scripts/setup

demo: setup      ## the main job, end to end
	@$(PY) scripts/demo.py

# Those that mind the time, or need the whole machine, go one after the other; the others two at a time.
# A few that fail are run once more, each alone, and counted in .cache/test-reruns.json (scripts/run_tests.py).
TOGETHER := tests/unit tests/zookeeper tests/cluster tests/clients tests/examples
test: lint       ## every functional check
	$(PY) scripts/run_tests.py tests $(addprefix --ignore=,$(TOGETHER))
	$(PY) scripts/run_tests.py $(TOGETHER) -n 2 --dist loadfile

lint: setup      ## style, types, layers, generated code
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m flowstone.wire.generate --check

generate: setup  ## regenerate the typed messages from the schema text
	$(PY) -m flowstone.wire.generate

bench: setup     ## the same load on Flowstone and on Apache Kafka, with gates (about 12 minutes)
	@$(PY) -m bench.run; gates=$$?; $(PY) -m bench.cold_reads && exit $$gates

walk: setup      ## the functions that run on five paths: produce, fetch, join, failover, Spark micro-batch
	@$(PY) -m tests.walk.run

clients: setup   ## other people's clients and suites, against fresh brokers
	$(PY) scripts/clients.py

faults: setup    ## kills, power losses and damage, long (about an hour; power losses need root)
	FLOWSTONE_FAULTS_KILLS=$${FLOWSTONE_FAULTS_KILLS:-500} FLOWSTONE_FAULTS_GROUP_KILLS=$${FLOWSTONE_FAULTS_GROUP_KILLS:-100} FLOWSTONE_FAULTS_POWER_LOSSES=$${FLOWSTONE_FAULTS_POWER_LOSSES:-240} FLOWSTONE_FAULTS_LIFE_CYCLE=$${FLOWSTONE_FAULTS_LIFE_CYCLE:-all} FLOWSTONE_FAULTS_COMPACTION_KILLS=$${FLOWSTONE_FAULTS_COMPACTION_KILLS:-60} FLOWSTONE_FAULTS_TRANSACTION_KILLS=$${FLOWSTONE_FAULTS_TRANSACTION_KILLS:-200} $(PY) -m pytest -rP tests/faults
	FLOWSTONE_COMPACTION_SEEDS=20000 FLOWSTONE_BRANCHING_SEEDS=500 FLOWSTONE_RETENTION_SEEDS=2000 $(PY) -m pytest tests/unit/log/test_*_properties.py

memory: setup    ## every means to fill a broker's memory, and half a million short-lived things (about 25 minutes)
	FLOWSTONE_MEMORY_LONG=1 $(PY) -m pytest -rP tests/hostile/test_memory.py
	$(PY) -m tests.hostile.churn --operations $${FLOWSTONE_CHURN_OPERATIONS:-500000}

sim: setup       ## whole clusters simulated from ten thousand seeds (1.5 hours; FLOWSTONE_SIM_SEEDS for fewer)
	$(PY) -m tests.sim.run --seeds $${FLOWSTONE_SIM_SEEDS:-10000}

chaos: setup     ## kills, cuts, full disks, power losses on a cluster of processes (about 15 minutes; needs root)
	$(PY) -m tests.chaos.run --faults $${FLOWSTONE_CHAOS_FAULTS:-60}

fuzz: setup      ## the native kernel under libFuzzer, ASan and UBSan (5 minutes, or FLOWSTONE_FUZZ_SECONDS; needs clang)
	$(PY) -m tests.fuzz.run --seconds $${FLOWSTONE_FUZZ_SECONDS:-300}

mutants: setup   ## small changes to the code that tests must notice (300 of them, about 40 minutes; FLOWSTONE_MUTANTS, FLOWSTONE_MUTANTS_SEED)
	$(PY) -m tests.mutants.run --count $${FLOWSTONE_MUTANTS:-300} --seed $${FLOWSTONE_MUTANTS_SEED:-1}

fixture: setup   ## the pytest plugin in a project and an environment of its own, three clients, xdist
	$(PY) tests/fixture_project/run.py

cluster: setup   ## clients, suites and Spark against three brokers that are killed under clients, transactions and Spark (about 25 minutes)
	$(PY) -m tests.clients.hunted
	$(PY) -m tests.chaos.clients.run
	FLOWSTONE_CLUSTER_LONG=1 $(PY) -m pytest tests/cluster_spark tests/cluster/test_ensemble.py
	$(PY) scripts/clients.py --cluster

spark: setup     ## Spark source and sink, long: a kill at every step, a standalone cluster, five million rows, examples
	FLOWSTONE_SPARK_LONG=1 $(PY) -m pytest tests/spark
	FLOWSTONE_SPARK_LONG=1 FLOWSTONE_PIPELINE_KILLS=$${FLOWSTONE_PIPELINE_KILLS:-200} $(PY) -m pytest tests/spark_pipeline
	FLOWSTONE_SPARK_LONG=1 $(PY) -m pytest tests/spark_examples
