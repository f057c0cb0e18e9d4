# Each target sets itself up: Python, pip and make are all that a fresh machine needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.installed
MEMBERS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard packages/*/pyproject.toml)))
EDITABLE := $(foreach member,$(MEMBERS),-e $(member))
FRAMEWORKS := .venv-frameworks
JAX := .venv-jax
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo demo-deploy test test-all test-device test-wing test-torch test-cluster test-serve-cluster test-frameworks test-jax quick lint fuzz bench bench-peer bench-device bench-faults bench-processors bench-faults-frameworks bench-faults-peer bench-laws bench-audit bench-cache bench-interop bench-serve bench-migrate bench-watch bench-tune bench-export bench-parallel bench-page kills soak-cache soak-serve docs docs-site prose screenshots release-check clean

demo: $(CORE)
	$(BIN)/python examples/demo.py

# From a trained LeNet and ResNet to C: export, run, quantise, generate, with the numbers held at each step.
demo-deploy: $(READY)
	$(BIN)/python examples/deploy/walk.py

# A file stays in one process: its tests share recordings. In order of names the slow ones come early. OPTIONS="-n 0" runs all in one.
# What failed runs once more in a process of its own, with nothing beside it: it has to fail there too. It is listed either way.
# PACKAGE=migrate runs the tests of one member, PACKAGE=core those of the core alone.
TESTS = $(if $(PACKAGE),$(if $(filter core,$(PACKAGE)),tests,packages/$(PACKAGE)/tests))
test: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(TESTS) $(OPTIONS) || \
	{ test $$? -eq 1 && echo "Once more, alone, what failed beside other tests:" && \
	$(BIN)/python -m pytest -v -x -n 0 --last-failed --last-failed-no-failures none $(TESTS) $(OPTIONS); }

# All that the tests leave out of `make test`: every case of what is sampled there, and what takes long.
test-all: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --every-way $(TESTS) $(OPTIONS)

# What `make test` leaves out about devices: Triton (280 MB) in its interpreter beside the CPU's kernels, where there is no GPU, and a device
# in name, compiled here, that trains, records and compares. Some ten minutes.
test-device: $(READY)
	$(PIP) install -q triton
	TRITON_INTERPRET=$(if $(shell command -v nvidia-smi),0,1) $(BIN)/python tests/devices/triton_beside_cpu.py --tensors 200 $(OPTIONS)
	$(BIN)/python -m pytest -q --every-way tests/devices/test_triton_numbers.py tests/devices/test_fake_device.py

# One room's or wing's tests: W=audit.
test-wing: $(READY)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile $(wildcard tests/$(W) tests/wings/$(W)) $(OPTIONS)

# The same with another PyTorch, in an environment of its own; OPTIONS and what comes first are as for `test`.
test-torch:
	$(PYTHON) -m venv .venv-torch-$(VERSION)
	sed 's/^torch==.*/torch==$(VERSION)/' constraints.txt > .venv-torch-$(VERSION)/constraints.txt
	.venv-torch-$(VERSION)/bin/python -m pip install torch==$(VERSION)
	.venv-torch-$(VERSION)/bin/python -m pip install -c .venv-torch-$(VERSION)/constraints.txt -e '.[dev,examples]' $(EDITABLE)
	.venv-torch-$(VERSION)/bin/python -m lockstep.kernels.every_loop
	.venv-torch-$(VERSION)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(OPTIONS)

# `lockstep serve --engine ray` on two nodes of Ray, which is installed for it (240 MB).
test-serve-cluster: $(READY)
	$(PIP) install -q -c constraints.txt -e '.[dev]' $(EDITABLE) 'ray[serve]>=2.50'
	$(BIN)/python -m pytest -q --every-way packages/serve/tests/serve_cluster $(OPTIONS)

# `lockstep compare --engine ray` and `lockstep search --engine ray` on two nodes of Ray at the loopback address, which is installed for it (240 MB),
# and `lockstep record --on slurm` on a Slurm of one node, whose packages come from Debian where this is root (40 MB).
test-cluster: $(READY)
	@command -v slurmctld >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get install -y -q --no-install-recommends slurm-wlm >/dev/null 2>&1; } || \
		echo "no slurmctld here: the tests of Slurm will be skipped"
	$(PIP) install -q -c constraints.txt -e '.[dev,cluster,kubernetes]' $(EDITABLE)
	$(BIN)/python -m pytest -q --every-way tests/engines packages/tune/tests/search/test_search_on_ray.py \
		packages/remote/tests/test_slurm_cluster.py packages/remote/tests/test_kubernetes.py $(OPTIONS)

# Trainings of TensorFlow and MindSpore, recorded as they run, in an environment of their own (6 GB): they want an h5py and a protobuf
# that other tests do not take. OPTIONS="-rP -k 'fault or mistake or replica'" shows the faults alone, each with the operator that is named.
test-frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest -q --every-way -n 2 --dist loadfile $(addprefix packages/frameworks/tests/,with_tensorflow with_mindspore across) $(OPTIONS)

# Trainings of JAX (CPU), in an environment of their own (2 GB). Each file has a process: JAX keeps what it has traced for all of one.
test-jax: $(JAX)/.installed
	ls packages/frameworks/tests/with_jax/test_*.py | xargs -n 1 -P 2 $(JAX)/bin/python -m pytest -q --every-way $(OPTIONS)

$(JAX)/.installed: pyproject.toml packages/frameworks/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(JAX)
	$(JAX)/bin/python -m pip install -q torch==2.13.0
	$(JAX)/bin/python -m pip install -q -c constraints.txt -e '.[examples]' -e 'packages/frameworks[jax]' -e packages/shell \
		flax optax equinox hypothesis pytest pytest-timeout pytest-xdist
	$(JAX)/bin/python -m lockstep.kernels.every_loop
	touch $@

$(FRAMEWORKS)/.installed: pyproject.toml packages/frameworks/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	grep -v -e '^h5py==' -e '^protobuf' constraints.txt > $(FRAMEWORKS)/constraints.txt
	$(FRAMEWORKS)/bin/python -m pip install -q torch==2.13.0
	$(FRAMEWORKS)/bin/python -m pip install -q -c $(FRAMEWORKS)/constraints.txt -e '.[examples]' \
		-e 'packages/frameworks[mindspore,tensorflow]' -e packages/interop-names -e packages/shell -e packages/watch \
		hypothesis pytest pytest-timeout pytest-xdist
	$(FRAMEWORKS)/bin/python -m lockstep.kernels.every_loop
	touch $@

# A minute: lint, types, floors, and what can be tested without a training.
quick: lint
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile tests/align tests/core tests/judge tests/report tests/test_docs.py \
		--ignore tests/align/test_extent.py -k "not demo" $(OPTIONS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Damaged and hostile recordings; N=20000 before a release. OPTIONS="--from 4711 --keep findings" as `tests/fuzz` has them.
fuzz: $(READY)
	$(BIN)/python tests/fuzz $(or $(N),1000) $(OPTIONS)

# OPTIONS="--large --docs docs/benchmarks.md" measures the largest recordings too and keeps the table.
bench: $(READY)
	$(BIN)/python benchmarks $(OPTIONS)

# Brings mindstudio-probe into an environment of its own, .venv-peer.
bench-peer: $(READY)
	$(BIN)/python benchmarks --peer $(OPTIONS)

# Dumps of mindstudio-probe with planted faults, read as they are, beside its own comparison.
bench-interop: $(READY)
	$(BIN)/python benchmarks/interop --docs docs/rooms/interop.md $(OPTIONS)

# Brings LitServe, MLServer and Ray Serve into environments of their own; OPTIONS="--docs docs/rooms/serve.md" keeps the table.
bench-serve: $(READY)
	$(BIN)/python benchmarks/serve $(OPTIONS)

# One training under several instruction sets and numbers of threads, each compared with each; `--arch lstm` for one.
bench-processors: $(READY)
	$(BIN)/python benchmarks/processors.py --docs docs/faults.md $(OPTIONS)

# Sound pairs and planted faults on a device, in pieces of at most 8 minutes; a killed run goes on where it was.
# OPTIONS="--device cpu --emulate reorder --only 'gpt/*'"; --plan says how much there is.
bench-device: $(READY)
	$(BIN)/python benchmarks/devices $(OPTIONS)

bench-faults: $(READY)
	$(BIN)/python benchmarks/faults --docs docs/faults.md

# Trainer, accelerate, Lightning, DDP, FSDP, compile ...: mistakes in them, and sound trainings beside each other.
bench-faults-frameworks: $(READY)
	$(BIN)/python benchmarks/faults --split frameworks --docs docs/faults.md

bench-faults-peer: $(READY)
	$(BIN)/python benchmarks/faults --peer

# Where the verdict by laws and the one by pairs of calls differ, over equal forms and mistakes. OPTIONS="--every 12".
bench-laws: $(READY)
	$(BIN)/python benchmarks/laws.py $(OPTIONS)

# Without a reference: which faults of kernels and updates an audit names. OPTIONS="--split development" while tuning.
bench-audit: $(READY)
	$(BIN)/python benchmarks/faults/audit.py $(OPTIONS)

# The scripts are other people's: OPTIONS="--mirror DIR" names a folder of clones, benchmarks/migrate/corpus.yaml which.
bench-migrate: $(READY)
	$(BIN)/python benchmarks/migrate $(OPTIONS)

# Watches sound trainings, which fire no rule, and such with one thing wrong: OPTIONS="--only 'gpt2*'".
bench-watch: $(READY)
	$(BIN)/python benchmarks/watch $(OPTIONS)

# Tunes trainings that are slow for one reason each, with fast but wrong knobs planted: OPTIONS="--only images".
bench-tune: $(READY)
	$(BIN)/python benchmarks/tune --docs docs/tune.md $(OPTIONS)
	$(BIN)/python benchmarks/tune/profile_cost.py --docs docs/profile.md

# Planted faults of exported files, beside torch.onnx's verification and others: PEERS is a Python with polygraphy,
# onnxslim, onnx and onnxruntime.
bench-export: $(READY)
	$(BIN)/python benchmarks/export_peers.py --peers $(PEERS) $(OPTIONS)

# Trains on two ranks with one slip each, and compares with one rank: OPTIONS="--only 'gpt*'". Some fifteen minutes.
# Then compares two recordings of 64, 256 and 1 024 synthetic ranks.
bench-parallel: $(READY)
	$(BIN)/python benchmarks/parallel --docs docs/distributed.md $(OPTIONS)
	$(BIN)/python benchmarks/parallel/many_ranks.py --docs docs/distributed.md

# Kills N trainings at random moments, and looks what their recordings hold.
kills: $(READY)
	$(BIN)/python tests/fuzz/kills.py $(or $(N),200)

# Samples from the cache beside LMDB, diskcache, Ray's object store and plain files. Peers come into a folder of their own.
bench-cache: $(READY)
	$(PIP) install -q --target .venv-cache-peers lmdb diskcache ray
	$(BIN)/python benchmarks/cache --peers .venv-cache-peers --docs docs/rooms/cache.md $(OPTIONS)

# Kills N daemons, readers and writers of the cache at random moments; every sample that any of them gets is held against the data set's.
soak-cache: $(READY)
	$(BIN)/python tests/fuzz/cache_kills.py $(or $(N),200)

# Ten minutes of requests to `lockstep serve` while its runners are killed: N says how many seconds.
soak-serve: $(READY)
	$(BIN)/python tests/fuzz/serve_soak.py $(or $(N),600)

# A page of 50 000 made-up pairs in Chromium: first paint, and frames a second while scrolling.
bench-page: $(READY)
	$(BIN)/python benchmarks/page.py $(OPTIONS)

# The pictures of the README, and one of every page of `report` and `ui` in demo-output/pictures, from what the demo leaves.
screenshots: export PATH := $(CURDIR)/$(BIN):$(PATH)
screenshots: $(READY) demo
	$(BIN)/python docs/screenshots.py demo-output

docs: $(READY)
	$(BIN)/python docs/build.py

# The pages as a site with a search, in site/, that opens from disk: a dead link or anchor is an error.
docs-site: $(READY)
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# How many words each page has, and how often they are the ones that make it hard to read.
prose:
	@$(PYTHON) docs/prose.py

# Wheel and sdist, each tried in a fresh environment on the Pythons from 3.10 to 3.13 that are on this machine: some
# three minutes for each. OPTIONS="--python 3.12 --torch 2.13.0" tries one.
release-check: $(READY)
	$(BIN)/python tests/release_check.py $(OPTIONS)

# The core alone, with what the examples train. torch comes first and by its exact version: left to the resolver, it may bring a build
# for GPUs, which is some gigabytes larger. Loops are compiled here, once: else each process would that comes before one is ready.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install torch==2.13.0
	$(PIP) install -c constraints.txt -e '.[examples]'
	$(BIN)/python -m lockstep.kernels.every_loop
	touch $@

# Members in one call, in which their pins of each other's versions are met by this clone. Modules are compiled here, once: each process
# of the tests would where Python is told to write no bytecode.
$(READY): $(CORE) $(MEMBERS:%=%/pyproject.toml)
	$(PIP) install -c constraints.txt -e '.[dev,examples]' $(EDITABLE)
	$(BIN)/python -m compileall -q src $(MEMBERS:%=%/src)
	@# Tests of pages need a browser; without one they are skipped, and say so.
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get install -y -q --no-install-recommends chromium >/dev/null 2>&1; } || \
		echo "no Chromium here: the browser tests of pages will be skipped"
	touch $@

clean:
	rm -rf $(VENV) .venv-cache-peers .venv-frameworks .venv-jax .venv-peer .venv-torch-* demo-output build dist site .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache
	find src packages tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
