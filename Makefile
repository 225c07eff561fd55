# The two commands that a newcomer needs:  make train   and   make test
# What they need is installed into .venv, from constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: train test test-slow check fix bench docs setup clean

train: .venv/.train  ## Train the stock-analysis example: data, tiny model, then config/experiment.yaml
	$(BIN)/python examples/stock_analysis/prepare.py
	$(BIN)/verl train --config config/experiment.yaml

test: setup  ## All quick tests
	$(BIN)/python -m pytest -n 2

test-slow: setup  ## Tests that take minutes: 200 kills, whole training runs
	$(BIN)/python -m pytest -m "slow" -n 2 --timeout 3600

check: .venv/.checked  ## Formatting, lint, types, layers, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fix: .venv/.checked  ## Mend what can be mended by machine
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## Speed, as ratios to a naive baseline of the same run
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

setup: .venv/.installed

# What the example needs: no tracker but its own.
.venv/.train: pyproject.toml constraints.txt requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[examples]"
	touch $@

# What the tests need: all of them.
.venv/.installed: .venv/.train
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,examples]"
	touch $@

.venv/.checked: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[check]"
	touch $@

clean:  ## Remove the environment and what the stock-analysis example made; runs in logs/ stay
	rm -rf .venv models/financial-llm-tiny models/financial-llm-7b data/stock_analysis_*.parquet
