# make generate · make test · make check · make clean: each does all its own set-up in .venv.
# make CUDA=cuda12|cuda13|none and make PYTHON=... override what scripts/setup-venv finds.

SHELL := /bin/sh
BIN := .venv/bin
export CUDA PYTHON

.DEFAULT_GOAL := help
.PHONY: help venv generate test check clean

help:
	@echo "make generate   read vendor/llm.c, write generated/, verify every layer on the backend at hand"
	@echo "make test       run the whole test suite"
	@echo "make check      run the linters and type checks alone"
	@echo "make clean      remove .venv and what builds and tests leave"

venv:
	@scripts/setup-venv

generate: venv
	@$(BIN)/llmc2py generate vendor/llm.c
	@$(BIN)/llmc2py verify

test: venv
	@$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 $(PYTEST_ARGS)

check: venv
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find llmc2py tests generated examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
