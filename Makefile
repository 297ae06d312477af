# Two commands for a fresh clone: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: the tests run in two processes, and more threads than cores only get in each other's way.
ENVIRONMENT := OMP_NUM_THREADS=1

.PHONY: demo test test-all lint format clean

demo: $(VENV)/ready
	$(ENVIRONMENT) $(BIN)/gyroscope demo

test: $(VENV)/ready lint
	$(ENVIRONMENT) $(BIN)/pytest -q -n 2 --dist worksteal

# With Flower in the same environment. By itself, because Flower and Ray are a download of their own and most people need
# neither. Its federations come after the rest: two dozen processes that each import everything get in everyone's way.
FEDERATIONS := tests/flower/test_deployed.py tests/flower/test_simulation.py
test-all: $(VENV)/ready-for-flower lint
	$(ENVIRONMENT) $(BIN)/pytest -q -n 3 --dist worksteal $(FEDERATIONS:%=--ignore=%)
	$(ENVIRONMENT) $(BIN)/pytest -q -n 2 $(FEDERATIONS)

lint: $(VENV)/ready
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(BIN)/mypy

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
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[flower]' -c constraints.txt
	$(BIN)/python -c 'import flwr, ray'  # for older Pythons pip installs neither, and says nothing
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-runs
