# Every target installs what it needs first; nothing else has to be typed.
BIN := .venv/bin
PYTEST := $(BIN)/pytest

.PHONY: setup demo test check check-deploy test-cluster replay integration faults gpu bench clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt scripts/setup
	bash scripts/setup

demo: setup
	$(BIN)/weightshift demo

test: check
	$(PYTEST)
	bash scripts/check-deploy

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-deploy: setup
	$(PYTEST) tests/deploy
	bash scripts/check-deploy

# Skipped, with the reason, without a cluster made for it: docs/kubernetes.md.
test-cluster: setup
	$(PYTEST) tests/cluster -rs

replay: setup
	$(PYTEST) tests/replay

integration: setup
	$(PYTEST) tests/integration

faults: setup
	$(PYTEST) tests/faults

gpu: setup
	$(PYTEST) -rs tests/gpu

bench: setup
	for benchmark in benchmarks/[a-z]*.py; do $(BIN)/python $$benchmark --quick --json || exit 1; done

clean:
	rm -rf .venv .tools .weightshift
