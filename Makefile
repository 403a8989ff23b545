.PHONY: help setup demo test lint generate bench walk clients cluster faults memory security ecosystem fixture spark spark-versions sim chaos fuzz mutants
.DEFAULT_GOAL := help

PY := .venv/bin/python

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/' | column -t -s:

setup:           ## make .venv and install everything into it
	@scripts/setup

demo: setup      ## the main job, end to end
	@$(PY) scripts/demo.py

# What runs beside what is in scripts/test_all.py. A few that fail are run once more, each alone, and counted in
# .cache/test-reruns.json (scripts/run_tests.py).
test: setup      ## every functional check
	@$(PY) scripts/test_all.py

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

ecosystem: setup ## products that people run on Kafka, each through kills (about 15 minutes; ECOSYSTEM="--kafka NAME..." for more or fewer)
	$(PY) -m tests.ecosystem.run $(ECOSYSTEM)

faults: export FLOWSTONE_FAULTS_KILLS ?= 500
faults: export FLOWSTONE_FAULTS_GROUP_KILLS ?= 100
faults: export FLOWSTONE_FAULTS_POWER_LOSSES ?= 240
faults: export FLOWSTONE_FAULTS_LIFE_CYCLE ?= all
faults: export FLOWSTONE_FAULTS_COMPACTION_KILLS ?= 60
faults: export FLOWSTONE_FAULTS_TRANSACTION_KILLS ?= 200
faults: export FLOWSTONE_FAULTS_SINK_KILLS ?= 100
faults: export FLOWSTONE_FAULTS_LETTER_KILLS ?= all
faults: export FLOWSTONE_FAULTS_SHARE_KILLS ?= 200
faults: setup    ## kills, power losses and damage, long (about an hour; power losses need root)
	$(PY) -m pytest -rP tests/faults
	FLOWSTONE_COMPACTION_SEEDS=20000 FLOWSTONE_BRANCHING_SEEDS=500 FLOWSTONE_RETENTION_SEEDS=2000 $(PY) -m pytest tests/unit/log/test_*_properties.py
	FLOWSTONE_WIRE_EXAMPLES=50 $(PY) -m pytest tests/unit/wire/test_round_trips.py tests/unit/wire/test_kio_oracle.py

memory: setup    ## every means to fill a broker's memory, and half a million short-lived things (about 25 minutes)
	FLOWSTONE_MEMORY_LONG=1 $(PY) -m pytest -rP tests/hostile/test_memory.py
	FLOWSTONE_HOSTILE_LONG=1 $(PY) -m pytest -rP tests/hostile/test_mutations.py
	$(PY) -m tests.hostile.churn --operations $${FLOWSTONE_CHURN_OPERATIONS:-500000}

security: setup  ## a million frames before a login, attacks on TLS, all logins, three suites over SASL_SSL (about an hour)
	FLOWSTONE_LOGIN_FRAMES=$${FLOWSTONE_LOGIN_FRAMES:-1000000} $(PY) -m pytest -rP --timeout 7200 tests/unit/broker/network/test_before_login.py
	FLOWSTONE_TLS_LONG=1 $(PY) -m pytest -rP tests/hostile/tls/test_tls.py
	FLOWSTONE_LOGINS=all $(PY) -m pytest tests/clients/security
	FLOWSTONE_SUITES_SECURITY=sasl_tls $(PY) -m pytest -p tests.support.security.secured_suites tests/clients tests/spark

sim: setup       ## whole clusters simulated from ten thousand seeds (1.5 hours; FLOWSTONE_SIM_SEEDS for fewer)
	$(PY) -m tests.sim.run --seeds $${FLOWSTONE_SIM_SEEDS:-10000}

chaos: setup     ## kills, cuts, full disks, power losses on a cluster of processes (about 15 minutes; needs root)
	$(PY) -m tests.chaos.run --faults $${FLOWSTONE_CHAOS_FAULTS:-60}

fuzz: setup      ## the native kernel under libFuzzer, ASan and UBSan (5 minutes, or FLOWSTONE_FUZZ_SECONDS; needs clang)
	$(PY) -m tests.fuzz.run --seconds $${FLOWSTONE_FUZZ_SECONDS:-300}

mutants: setup   ## small changes to the code that tests must notice (300 of them; FLOWSTONE_MUTANTS, FLOWSTONE_MUTANTS_SEED)
	$(PY) -m tests.mutants.run --count $${FLOWSTONE_MUTANTS:-300} --seed $${FLOWSTONE_MUTANTS_SEED:-1}

fixture: setup   ## the pytest plugin in a project and an environment of its own, three clients, xdist
	$(PY) tests/fixture_project/run.py

cluster: setup   ## clients, suites and Spark against three brokers that are killed under clients, transactions and Spark (about 25 minutes)
	$(PY) -m tests.clients.hunted
	$(PY) -m tests.chaos.clients.run
	FLOWSTONE_CLUSTER_LONG=1 $(PY) -m pytest tests/cluster_spark tests/cluster/test_ensemble.py
	$(PY) scripts/clients.py --cluster

spark-versions: setup ## the tests of the Spark source and sink on PySpark 4.0, 4.1, 4.2 and 4.3, each in an environment of its own
	$(PY) scripts/spark_versions.py

spark: setup     ## Spark source and sink, long: a kill at every step, a standalone cluster, five million rows, examples
	FLOWSTONE_SPARK_LONG=1 $(PY) -m pytest tests/spark
	FLOWSTONE_SPARK_LONG=1 FLOWSTONE_PIPELINE_KILLS=$${FLOWSTONE_PIPELINE_KILLS:-200} $(PY) -m pytest tests/spark_pipeline
	FLOWSTONE_SPARK_LONG=1 $(PY) -m pytest tests/spark_examples
	$(PY) scripts/spark_versions.py --quick
