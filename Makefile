# `make demo` and `make test` set everything up on a fresh machine; a second run takes seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: install demo test lint format wheel clean

install: $(STAMP)

# torch comes first and pinned, so that no other package pulls in another build of it; the package is
# then built against what is installed.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade -c constraints.txt pip setuptools
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt scikit-build-core cmake ninja
	$(PIP) install -q -c constraints.txt --no-build-isolation -e ".[dev]"
	touch $@

demo: install
	$(BIN)/cassi-reconstruct hydra.run.dir=outputs/demo
	@echo "Look at outputs/demo/rgb.png, bands.png and spectra.png."

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' | xargs -r $(BIN)/clang-format --dry-run -Werror

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' | xargs -r $(BIN)/clang-format -i

wheel: install
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist .

clean:
	rm -rf build dist outputs multirun .mypy_cache .ruff_cache .pytest_cache
