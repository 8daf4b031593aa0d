# Needs git, make, Python 3.11 or later and the package registries; installs the rest into .venv.
.DEFAULT_GOAL := help
.PHONY: help demo demo-eval demo-web test soak test-agents test-agents-all install-agents test-browser check bench mutants docs \
	docs-reference clean

# The tests are compiled once for all processes that run them, whatever the environment says about compiled files.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
BROWSER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rolecall-browser
AGENTS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rolecall-agents
SOURCES := pyproject.toml README.md $(shell find src -type f -not -name '*.pyc')

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

demo: .venv/installed ## set up and show the main job
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

demo-eval: .venv/installed ## try two developers on a suite of tasks, and judge them
	@$(BIN)/python examples/demo.py eval

demo-web: .venv/installed ## open the page on the threads of the demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[web]'
	@$(BIN)/python examples/demo.py web

test: .venv/compiled ## set up and run every test but those of test-agents
	@scripts/install-programs
	$(BIN)/python -m pytest -n 4 --dist worksteal --in-memory -o tmp_path_retention_policy=failed $(PYTEST_ARGS)

soak: .venv/tested ## what is killed at random, crowded or simulated in the tests, for longer
	SOAK=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS) \
		tests/evals tests/service/test_chaos.py tests/service/test_fleet_faults.py tests/service/test_group_chaos.py \
		tests/service/test_load.py tests/store/test_concurrency.py tests/store/test_kills.py \
		tests/threads/test_group_kills.py tests/threads/test_step_kills.py

test-agents: .venv/tested install-agents ## test claude, codex and codex-acp with the real programs, as agents and as hosts
	ROLECALL_TEST_AGENTS='$(AGENTS)' scripts/offline $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS) \
		tests/realagents/test_claude.py tests/realagents/test_claude_host.py tests/realagents/test_codex.py \
		tests/realagents/test_codex_host.py tests/realagents/test_codex_acp.py tests/realagents/test_acpx.py \
		tests/realagents/test_plan_run.py

test-agents-all: .venv/tested install-agents ## the same with every agent that can be installed
	scripts/install-agents '$(AGENTS)' opencode gemini qwen copilot hermes claude-agent-acp
	ROLECALL_TEST_AGENTS='$(AGENTS)' scripts/offline $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS) tests/realagents

test-browser: .venv/tested ## test the web page in a real Chromium; screenshots go to build/screenshots
	@scripts/install-browser '$(BROWSER)' || \
		{ echo "make test-browser: NOTHING WAS TESTED: the browser could not be installed (see above)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group browser
	ROLECALL_TEST_BROWSER='$(BROWSER)' $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS) tests/browser

install-agents:
	scripts/install-agents '$(AGENTS)' claude-code codex codex-acp acpx

check: .venv/tested ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/tested ## measure, as ratios in one run
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

docs: .venv/installed docs-reference ## build the site of docs/ into build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@! grep -rlE '<(script|img|iframe|link rel="(stylesheet|pre))[^>]*="https?:' --include='*.html' build/site # works offline
	@echo 'open build/site/index.html'

docs-reference: .venv/installed ## write docs/reference from the commands, keys and tools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[web]'
	$(BIN)/python scripts/reference.py

mutants: .venv/tested ## break the project's tools in single ways: the fixtures have to notice
	$(BIN)/python tests/nexus/mutants.py

clean: ## remove everything that was installed or cached
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A normal install, not an editable one: pip compiles it once, so the command starts fast.
.venv/installed: .venv/created $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	@touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[test]' --group check
	@touch $@

# pytest compiles the tests once, and not once in each of its processes.
.venv/compiled: .venv/tested $(shell find tests -name '*.py')
	$(BIN)/python -m pytest --collect-only -qq > /dev/null || true
	@touch $@

.venv/created:
	sh scripts/make-venv .venv
	@touch $@
