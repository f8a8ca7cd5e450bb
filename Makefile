# One word per job. Everything sets itself up; nothing outside .venv is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(BIN)/python

.PHONY: help setup demo check test test-long test-gpu test-slurm bench bench-gpu report reference docs clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tilewright needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.core

setup: $(VENV)/.core ## make .venv with the core install

demo: $(VENV)/.core ## verse, reviews, faces, a volume; then four jobs at full size, timed and checked
	$(RUN) -m tilewright demo $(ARGS)

check: $(VENV)/.test ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

test: check ## everything that has to hold, in minutes on 2 cores
	$(RUN) -m pytest -n 3 --dist loadfile -m "not long" $(ARGS)

test-long: $(VENV)/.test ## the same and the tests that take longer
	$(BIN)/pip install --quiet --editable '.[test,ray,cloud-test,eval]'
	$(RUN) -m pytest $(ARGS)

test-gpu: $(VENV)/.test ## the kernels for GPUs on this machine's GPU; `make test` runs them as Python
	$(BIN)/pip install --quiet --editable '.[gpu]'
	TILEWRIGHT_GPU=1 $(RUN) -m pytest -k gpu $(ARGS)

test-slurm: $(VENV)/.test ## the scripts of `tilewright slurm` on a Slurm that this starts; Debian: slurm-wlm, munge
	@PATH="$$PATH:/usr/sbin"; command -v slurmctld slurmd munged > /dev/null || \
	  { echo "Slurm is not installed. On Debian: apt-get install slurm-wlm munge"; exit 2; }
	$(RUN) -m pytest tests/runtime/jobs/test_slurm_cluster.py $(ARGS)

bench: $(VENV)/.test ## measure every ladder, all jobs and their workers on this machine's CPU, into results/
	$(RUN) -m tilewright ladder all --save
	$(RUN) -m tilewright bench sentiment --against torch --save
	$(RUN) -m tilewright bench sentiment --dtype bfloat16 --against torch --save
	$(RUN) -m tilewright bench gpt2 --dtype both --profile --save
	$(RUN) -m tilewright bench dcgan --dtype both --save
	$(RUN) -m tilewright bench convolve --save
	for model in minilm distilbert bert; do $(RUN) -m tilewright bench embed --model $$model --save || exit; done
	$(RUN) -m tilewright bench score --save
	$(RUN) -m tilewright bench scaling --save
	$(MAKE) report

bench-gpu: $(VENV)/.test ## measure every ladder and job on this machine's GPU, into results/
	$(BIN)/pip install --quiet --editable '.[gpu,volume]'
	$(RUN) -m tilewright ladder all --device cuda --save
	$(RUN) -m tilewright bench sentiment --device cuda --save
	$(RUN) -m tilewright bench gpt2 --device cuda --dtype both --profile --save
	$(RUN) -m tilewright bench dcgan --device cuda --dtype both --save
	$(RUN) -m tilewright bench convolve --device cuda --save
	for model in minilm distilbert bert; do $(RUN) -m tilewright bench embed --model $$model --device cuda --dtype float16 --save || exit; done
	$(RUN) -m tilewright bench score --device cuda --dtype bfloat16 --save
	$(MAKE) report

report: $(VENV)/.core ## write the tables, the figures and the HTML page from results/, and the drawings of the kernels
	$(RUN) -m tilewright report
	$(RUN) docs/_hooks/drawings.py

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

reference: $(VENV)/.core ## write the pages of docs/reference that are generated from the code
	$(RUN) docs/_hooks/reference_pages.py

docs: $(VENV)/.docs reference ## build the documentation site into build/site; open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build dist
