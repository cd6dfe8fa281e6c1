# `make demo` and `make test` set up what they need on a fresh machine; a second run takes seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed

.PHONY: install demo test test-all test-fast coverage sanitize emulate fuzz lint format docs wheel release release-check commands clean

install: $(STAMP)

# torch comes first and pinned, so that no other package pulls in another build of it; the package is
# then built against what is installed. Python compiles what it imports, not all that is installed.
$(BASE): pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/* csrc/*/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --no-compile -c constraints.txt torch scikit-build-core cmake ninja
	$(PIP) install -q --no-compile -c constraints.txt --no-build-isolation -e .
	touch $@

$(STAMP): $(BASE)
	$(PIP) install -q --no-compile --upgrade -c constraints.txt pip setuptools
	$(PIP) install -q --no-compile -c constraints.txt --no-build-isolation -e ".[dev]"
	touch $@

demo: $(BASE)
	$(BIN)/cassi-reconstruct hydra.run.dir=outputs/demo
	@echo "Look at outputs/demo/rgb.png, bands.png, spectra.png and report.html."

# Processes side by side, one thread each: most tests are too small for two threads to gain anything.
# What Python compiles is kept: tests start many processes, and a training imports for 9 s instead of 4.
JOBS ?= 2
SIDE_BY_SIDE = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=
PYTEST = pytest -n $(JOBS) --dist worksteal

test: install emulate
	$(SIDE_BY_SIDE) $(BIN)/python -m $(PYTEST) -m "not release" --durations=20 --durations-min=2

# For the inner loop: what takes seconds, of cassi alone.
test-fast: install
	$(SIDE_BY_SIDE) $(BIN)/python -m $(PYTEST) -m "not slow and not release" --ignore=tests/scripts

# What `make test` leaves out: wheel, site, notebooks, operators in emulated kernels, workers of a
# cluster; and what CI leaves out too, marked `thorough`: further networks, cameras and recorded
# vectors of a class, formats of all networks, further launchers, orders of emulated threads, and
# gradients through emulated kernels.
release-check: install emulate
	$(SIDE_BY_SIDE) $(BIN)/python -m $(PYTEST) -m release

# What CI has, in one session: what all start with is collected and compiled once.
test-all: install emulate
	$(SIDE_BY_SIDE) $(BIN)/python -m $(PYTEST) -m "not thorough"

# Lines and branches of cassi/ that the tests reach, also in the commands that they start.
coverage: export COVERAGE_FILE := $(abspath .coverage)
coverage: install
	$(BIN)/coverage erase
	$(SIDE_BY_SIDE) $(BIN)/coverage run -m $(PYTEST) -m "not thorough"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report $(COVERED)

# The CPU library with AddressSanitizer and UBSan, in a folder of its own, under the tests that reach
# into every corner of it, and random calls and files. Memory that the sanitizer does not give is
# NULL, as on a full machine, and no request may exceed what any file or call has reason to ask for.
SANITIZED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=9216 \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  OMP_NUM_THREADS=2 CASSI_LIBRARY_DIR=$(abspath build/sanitize)
FUZZ ?= 10000

sanitize: build/sanitize/_cpu.so
	$(SANITIZED) $(BIN)/python -m pytest -p no:cacheprovider -q -x \
	  tests/ops/test_compiled*.py tests/ops/test_robustness.py
	$(MAKE) fuzz

# Both go through all of their cases before findings end them with status 1.
fuzz: build/sanitize/_cpu.so
	$(SANITIZED) $(BIN)/python -m scripts.checks.fuzz ops --count $(FUZZ)
	$(SANITIZED) $(BIN)/python -m scripts.checks.fuzz readers --count $(FUZZ)

build/sanitize/_cpu.so: $(STAMP)
	CASSI_SANITIZE=1 FORCE_CUDA=0 $(BIN)/cmake -S . -B build/sanitize -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/cmake --build build/sanitize
	touch $@

# The CUDA kernels compiled as C++ into a library for the CPU, in a folder of its own, for
# tests/ops/test_emulated.py; it takes the place of the CPU library where CASSI_LIBRARY_DIR names it.
emulate: $(BASE)
	@command -v $(CXX) > /dev/null || { echo "No $(CXX): the CUDA kernels are not emulated."; exit 0; }; \
	CASSI_EMULATE=1 $(BIN)/cmake -S . -B build/emulated -G Ninja --log-level=ERROR \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) && \
	$(BIN)/cmake --build build/emulated

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.checks.names
	$(BIN)/python -m scripts.checks.syntax
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh' | xargs -r $(BIN)/clang-format --dry-run -Werror

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh' | xargs -r $(BIN)/clang-format -i

wheel: install
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist .

# Wheel and source archive in dist/, built from what git has and tested in empty environments.
release: install
	$(BIN)/python -m scripts.release.archives

# Every target here and every command of README and docs, at small size: before a release.
commands: install
	$(SIDE_BY_SIDE) $(BIN)/python -m scripts.checks.commands

# The documentation site; the notebooks are executed for it, which takes a minute.
docs: install
	$(SIDE_BY_SIDE) NO_MKDOCS_2_WARNING=1 CASSI_DOCS_RUN=1 $(BIN)/python -m mkdocs build
	@echo "Open build/site/index.html."

clean:
	rm -rf build dist outputs multirun mutants .mypy_cache .ruff_cache .pytest_cache
