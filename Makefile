# Everything works from a clean clone: the first target that needs it makes .venv.
#   make demo    a real model, compiled, timed        make test    the quick suite
SHELL := /bin/bash
PYTHON ?= python3.11
VENV ?= .venv
TORCH ?= torch==2.13.0
PY := $(VENV)/bin/python
WORKERS ?= 2
# One thread a worker: the suite judges results, not speed.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(WORKERS)
# addopts of pyproject.toml leave the slow suites out; -m replaces that choice.

.PHONY: demo test test-slow test-opinfo test-gpu test-fuzz fuzz fuzz-sizes fuzz-training zoo test-conformance test-nocompiler bench clean

demo: $(VENV)/installed
	$(PY) -m preheat demo

bench: $(VENV)/installed
	$(PY) -m preheat bench

test: $(VENV)/installed
	$(PYTEST) tests

test-slow: $(VENV)/installed
	$(PYTEST) -m slow tests

test-opinfo: $(VENV)/installed
	$(PYTEST) -m opinfo tests

# On a machine with a GPU that torch sees: programs and every third operator through compile, then
# the tests of training and the models with their tensors there.
test-gpu: $(VENV)/installed
	$(PYTEST) -m gpu tests/gpu
	PREHEAT_TEST_DEVICE=cuda $(PYTEST) tests/training tests/test_zoo.py

test-fuzz: $(VENV)/installed
	$(PYTEST) -m fuzz tests

# The long run: COUNT random programs from seed START; failures print their seed and smallest form.
COUNT ?= 20000
START ?= 0
fuzz: $(VENV)/installed
	cd tests && OMP_NUM_THREADS=1 $(abspath $(PY)) -m fuzz $(START) $(COUNT)

# Random programs at sizes that they were not captured at, compared with eager.
fuzz-sizes: $(VENV)/installed
	OMP_NUM_THREADS=1 $(PY) -W ignore -m tests.sizes.check $(START) $(COUNT) -j $(WORKERS)
	OMP_NUM_THREADS=1 $(PY) -W ignore -m tests.sizes.check $(START) $(COUNT) preheat -j $(WORKERS)
	OMP_NUM_THREADS=1 $(PY) -W ignore -m tests.sizes.gradients $(START) $(COUNT) -j $(WORKERS)

# The same for programs that are run backward; DEVICE=cuda has their tensors on a GPU.
DEVICE ?= cpu
fuzz-training: $(VENV)/installed
	PREHEAT_TEST_DEVICE=$(DEVICE) OMP_NUM_THREADS=1 $(PY) -m tests.training $(START) $(COUNT) -j $(WORKERS)

# Every architecture of transformers, beside torch.compile: writes docs/zoo.md. About half an hour.
zoo: $(VENV)/installed
	cd tests && OMP_NUM_THREADS=1 $(abspath $(PY)) -m zoo

# Under every Python found here.
test-conformance: $(VENV)/installed
	$(PYTEST) --dist worksteal -m conformance tests/capture

# The whole quick suite where no C or C++ compiler can be found.
test-nocompiler: $(VENV)/installed
	rm -rf $(VENV)/no-compiler && mkdir -p $(VENV)/no-compiler
	for tool in bash sh env git rm mkdir cat ls uname ldconfig; do \
	  path=$$(command -v $$tool) && ln -sf $$path $(VENV)/no-compiler/$$tool || true; done
	PATH=$(CURDIR)/$(VENV)/no-compiler; \
	for tool in cc gcc g++ c++ clang clang++ nvcc; do \
	  if command -v $$tool >/dev/null; then echo "$$tool is still on PATH"; exit 1; fi; done; \
	unset CC CXX; OMP_NUM_THREADS=1 $(CURDIR)/$(PY) -m pytest -q -n $(WORKERS) tests

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --config-settings editable_mode=compat $(TORCH) -e '.[demo,dev]'
	$(PY) -m compileall -q preheat  # what pip does for packages that are not editable
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
