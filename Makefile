# `make demo` and `make test` are for a fresh clone: each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: the tests run in several processes, and more threads than cores only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q

.PHONY: demo docs test test-fast test-all lint format dist clean

demo: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/gyroscope demo

# The documentation site, in build/site: open build/site/index.html. A broken link or anchor is an error. It needs no network.
docs: $(VENV)/ready-for-docs
	$(BIN)/sphinx-build -q -E -a -W --keep-going docs build/site

# What a change should pass before it is sent: the linters, the type checker, and every test that is not marked slow.
# Three processes on two cores, because many tests wait for processes of their own.
test: $(VENV)/ready lint
	$(PYTEST) -n 3 --dist worksteal -m "not slow"

# An answer in under a minute: rules, attacks and the core, with few examples per property.
FAST := tests/rules $(wildcard tests/momentum tests/test_*.py) \
  $(filter-out %_auto.py %_foresight.py,$(wildcard tests/attacks/test_*.py))
test-fast: $(VENV)/ready
	GYROSCOPE_TEST_PROFILE=fast $(PYTEST) -n 2 --dist worksteal -m "not slow" $(FAST)

# Everything, with Flower, Lightning, Accelerate, transformers, MLflow and W&B in the same environment. They are apart because
# they are a large download and most people need none of them. Slow tests come last, file by file: what a file sets up, such as a browser or five ranks, it sets up once.
test-all: $(VENV)/ready-for-flower lint
	$(PYTEST) -n 3 --dist worksteal -m "not slow"
	$(PYTEST) -n 2 --dist loadfile -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/ready
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .

# The exact torch version first and by itself: a looser request may fetch gigabytes of GPU libraries.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

$(VENV)/ready-for-flower: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[flower,hugging-face,lightning,mlflow,wandb]' -c constraints.txt
	$(BIN)/python -c 'import flwr, ray, transformers'  # for older Pythons pip installs none, and says nothing
	touch $@

$(VENV)/ready-for-docs: $(VENV)/ready
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]' -c constraints.txt
	touch $@

# What is uploaded to PyPI: the source, and the wheel that is built from it. The tests install the wheel and run it.
dist: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build demo-runs dist
