# The two commands of the README are `make book` and `make test`. Both set up what they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help book test lab serve notebooks verify-blackwell lint clean setup chromium

VENV   ?= .venv
PY     := $(VENV)/bin/python
# The newest Python at hand that is 3.11 or later; `make book PYTHON=…` chooses another.
ifndef PYTHON
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do \
  command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  2>/dev/null && echo $$p && break; done)
endif
PORT   ?= 8000
HTML   := book/_build/html

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */make \1\t/' | expand -t 24

setup: $(VENV)/.ready  ## the virtual environment with every pinned package

$(VENV)/.ready: requirements.txt pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "The course needs Python 3.11 or newer; none was found."; exit 1; }
	@[ -x $(PY) ] && $(PY) -m pip --version >/dev/null 2>&1 || { \
	  rm -rf $(VENV); \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	      || { echo "No venv: install it first (Debian, Ubuntu: apt-get install python3-venv)."; exit 1; }; \
	    apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }; }
	$(PY) -m pip install --disable-pip-version-check -q -r requirements.txt
	$(PY) -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt $(VENV)/.ready
	$(PY) -m pip install --disable-pip-version-check -q -r requirements-dev.txt
	@touch $@

$(VENV)/.ready-lab: requirements-lab.txt $(VENV)/.ready
	$(PY) -m pip install --disable-pip-version-check -q -r requirements-lab.txt
	@mkdir -p $(VENV)/etc/jupyter/labconfig  # a double click opens a chapter as a notebook
	$(VENV)/bin/jupytext-config \
	  --settings-file $(VENV)/etc/jupyter/labconfig/default_setting_overrides.json \
	  set-default-viewer markdown myst
	@touch $@

book: $(VENV)/.ready  ## execute every chapter and build the book: book/_build/html/index.html
	$(VENV)/bin/jupyter-book build . --path-output book -W -n --keep-going
	@echo "Open $(HTML)/index.html in a browser; no server is needed."

test: $(VENV)/.ready-dev chromium  ## every test; those that need a GPU or a browser say why they skip
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)

chromium:
	@if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null \
	    || echo "Chromium could not be installed; the tests of the built pages will be skipped."; \
	else echo "No Chromium, and no right to install it; the tests of the built pages will be skipped."; \
	fi

lab: $(VENV)/.ready-lab  ## the chapters as notebooks in JupyterLab
	$(VENV)/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) chapters

serve: book  ## the built book at http://localhost:8000
	$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

notebooks: $(VENV)/.ready  ## .ipynb copies of the chapters, in notebooks/
	@cd chapters && find . -name '*.md' | while read -r page; do \
	  if grep -q '^kernelspec:' "$$page"; then \
	    mkdir -p "../notebooks/$$(dirname "$$page")"; \
	    ../$(VENV)/bin/jupytext --quiet --to ipynb --output "../notebooks/$${page%.md}.ipynb" "$$page"; \
	    echo "notebooks/$${page#./}" | sed 's/md$$/ipynb/'; \
	  fi; done

verify-blackwell: $(VENV)/.ready  ## on a B200: verify and measure its kernels, into book/results/b200/
	$(PY) scripts/gpu_check.py --arch blackwell

lint: $(VENV)/.ready-dev  ## format, lint and types
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/basedpyright

clean:  ## remove what was built; the virtual environment stays
	rm -rf book/_build notebooks .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
