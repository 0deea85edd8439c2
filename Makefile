# Everything needs Python >= 3.11 and make only. PYTHON=python3.12 make up picks another interpreter.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check -q

.PHONY: up test prove prove-slow prove-chaos clients simulate chaos lint bench docs clean
.DEFAULT_GOAL := up

.venv: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("llmgw needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": set PYTHON=") if sys.version_info < (3, 11) else None'
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (a few minutes the first time) ..."
	@$(PIP) install -c constraints.txt -e '.[demo]'
	@touch $@

.venv/.installed-dev: .venv/.installed
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

up: .venv/.installed
	@exec .venv/bin/llmgw up

test: .venv/.installed-dev
	.venv/bin/python -m pytest -n 3 --dist loadfile

# Everything that is longer than CI allows: about two and a half hours; each part can be run by its own name.
prove: prove-slow clients prove-chaos

prove-slow: .venv/.installed-dev
	.venv/bin/python -m pytest -m slow --timeout 3600

prove-chaos: .venv/.installed-dev
	.venv/bin/python -m tests.chaos 1 5 10

# Clients of OpenAI's and Anthropic's protocols, each installed on its own; needs Node 20 or newer too.
clients: .venv/.installed-dev
	.venv/bin/python -m tests.clients

# Stories of the scheduler from SEEDS seeds, the first of them FIRST; a failing one is printed as short as it gets.
SEEDS ?= 300
FIRST ?= 0
simulate: .venv/.installed-dev
	.venv/bin/python -m tests.simulate $(SEEDS) $(FIRST)

# A whole cluster under load while its parts are killed and frozen: MINUTES for each of SEEDS seeds from FIRST on.
chaos: MINUTES = 5
chaos: SEEDS = 1
chaos: FIRST = 1
chaos: .venv/.installed-dev
	.venv/bin/python -m tests.chaos $(FIRST) $(MINUTES) $(SEEDS)

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: .venv/.installed-dev
	.venv/bin/python -m bench.overhead

docs: .venv/.installed-dev
	.venv/bin/python -m tests.docs
	.venv/bin/python -m tests.golden.record

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache
