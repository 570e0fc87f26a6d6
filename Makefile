# Every target makes its own environment from the pinned lock; nothing is installed by hand.
PYTHON ?=
PRECISION ?= auto
VENV := .venv
WHEEL := .venv-wheel
PIP := bin/python -m pip --disable-pip-version-check
LOCKED := install --quiet --require-hashes --requirement
OURS := --quiet --no-deps --no-build-isolation
WORKERS ?= 2

.PHONY: demo test test-all coverage test-matrix check-install lint types docs lock clean
.DELETE_ON_ERROR:

define run_demo
	@mkdir -p $(2)
	$(1)/bin/maskjet traffic video $(2)/street.mp4 --size 720p --frames 150 --seed 7
	$(1)/bin/maskjet run $(2)/street.mp4 --model demo --precision $(PRECISION) --out $(2)/demo.mp4 --out $(2)/demo.jsonl
endef

demo: $(VENV)/editable.done
	$(call run_demo,$(VENV),out)

test: $(VENV)/test.done
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not slow" $(TESTS)

test-all: $(VENV)/test.done
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(TESTS)

# Lines of the package that the tests run, in out/coverage; processes that tests start are not counted.
coverage: $(VENV)/test.done
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal --cov=maskjet --cov-report=term:skip-covered \
		--cov-report=html:out/coverage $(TESTS)

# What users get: a wheel of this clone and the base install's packages, in an environment of their own.
check-install: $(WHEEL)/run.done
	rm -rf $(WHEEL)/dist out/wheel
	$(WHEEL)/$(PIP) wheel $(OURS) --wheel-dir $(WHEEL)/dist .
	$(WHEEL)/$(PIP) install $(OURS) --force-reinstall $(WHEEL)/dist/maskjet-*.whl
	$(call run_demo,$(WHEEL),out/wheel)
	$(WHEEL)/bin/python tools/check_install.py --demo out/wheel

# The numeric tests as on other processors: threads × instruction sets × precisions of float32 products.
test-matrix: $(VENV)/test.done
	$(VENV)/bin/python -m tools.test_matrix --numprocesses $(WORKERS) $(TESTS)

lint: $(VENV)/test.done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# As each Python from 3.11 on reads it; `lint` checks with the oldest alone.
types: $(VENV)/test.done
	for version in 3.12 3.13 3.14; do $(VENV)/bin/mypy --python-version $$version || exit; done

# The site, in out/site; a warning, as of a broken link, is an error.
docs: $(VENV)/test.done
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# All extras but quantize, whose nncf asks for older packages than the lock has from Python 3.12 on.
EXTRAS = supervision pandas mqtt coco serve jobs ray gpu torchvision onnx openvino bench

# The locks hold for Python 3.11 to 3.14 on Linux; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		pyproject.toml --group build --output-file requirements/run.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		pyproject.toml $(EXTRAS:%=--extra %) --group build --group test --group lint --group docs \
		--constraint requirements/run.txt --output-file requirements/test.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		pyproject.toml --extra serve --constraint requirements/test.txt --output-file requirements/serve.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		--group build --constraint requirements/run.txt --output-file requirements/build.txt

clean:
	rm -rf $(VENV) $(WHEEL) out

# Without PYTHON=…, the first of these that is promised, or else 3.14, which nobody has tried.
$(VENV)/bin/python $(WHEEL)/bin/python:
	@set -- $(or $(if $(PYTHON),"$(PYTHON)"),python3 python3.13 python3.12 python3.11 python3.14); \
	for newest in 13 14; do for python; do \
		"$$python" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $$newest))" 2>/dev/null \
			&& { echo "$$python -m venv $(@:/bin/python=)"; exec "$$python" -m venv $(@:/bin/python=); }; \
	done; done; \
	echo "PYTHON must be Python 3.11 to 3.14, got '$$1' ($$("$$1" --version 2>&1 | head -1)); write: make $(MAKECMDGOALS) PYTHON=/path/to/python3.13" >&2; \
	exit 1

$(VENV)/run.done $(WHEEL)/run.done: %/run.done: requirements/run.txt | %/bin/python
	@echo "Installing the pinned packages (PyTorch with CUDA: 6 GB on disk, a minute or two) ..."
	$*/$(PIP) $(LOCKED) requirements/run.txt
	@touch $@

$(VENV)/editable.done: pyproject.toml $(VENV)/run.done
	$(VENV)/$(PIP) install $(OURS) --editable .
	@touch $@

$(VENV)/test.done: requirements/test.txt $(VENV)/editable.done
	$(VENV)/$(PIP) $(LOCKED) requirements/test.txt
	@touch $@
