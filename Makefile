# make tune [MATRIX=path] [ARGS="…"]   set up, then tune a matrix (a built-in one when MATRIX is empty)
# make test                            set up, then ruff, mypy and the tests
PYTHON ?= python3
MATRIX ?=
ARGS ?=
PIP_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: tune test setup
.DEFAULT_GOAL := tune

tune: $(STAMP)
	$(BIN)/sparserl tune $(if $(MATRIX),"$(MATRIX)") $(ARGS)

test: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -q $(ARGS)

setup: $(STAMP)

# Done again only when what is to be installed has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sparserl needs Python 3.11 or newer, but $(PYTHON) is %d.%d: run make PYTHON=python3.12" % sys.version_info[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@
