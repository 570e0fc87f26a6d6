# Every target makes its own .venv from the pinned lock; nothing is installed by hand.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes
SELF := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
WORKERS ?= 2

.PHONY: demo test test-matrix lint lock clean
.DELETE_ON_ERROR:

demo: $(VENV)/run.done
	@mkdir -p out
	$(VENV)/bin/maskjet traffic video out/street.mp4 --size 720p --frames 150 --seed 7
	$(VENV)/bin/maskjet run out/street.mp4 --model demo --out out/demo.mp4 --out out/demo.jsonl

test: $(VENV)/test.done
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) $(TESTS)

# The numeric tests as on other processors: threads × instruction sets × precisions of float32 products.
test-matrix: $(VENV)/test.done
	$(VENV)/bin/python -m tools.test_matrix --numprocesses $(WORKERS) $(TESTS)

lint: $(VENV)/test.done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The locks hold for Python 3.11 to 3.13 on Linux; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		pyproject.toml --group build --output-file requirements/run.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
		pyproject.toml --all-extras --group build --group test --group lint \
		--constraint requirements/run.txt --output-file requirements/test.txt

clean:
	rm -rf $(VENV) out

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.done: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing the pinned packages (PyTorch with CUDA: 6 GB on disk, a minute or two) ..."
	$(PIP) --requirement requirements/run.txt
	$(SELF)
	@touch $@

$(VENV)/test.done: requirements/test.txt $(VENV)/run.done
	$(PIP) --requirement requirements/test.txt
	$(SELF)
	@touch $@
