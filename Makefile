# Everything a newcomer needs is `make serve` and `make test`; each sets up what is missing.
PYTHON ?= python3
# Files of tests are dealt out to so many processes, the slow ones first (tests/conftest.py); each
# process has its own servers and Redis. Three keep two processors busy: tests wait a third of their time.
# A test that hangs fails after `--timeout` seconds, with the stack of each thread.
TEST_PROCESSES ?= 3
BIN := .venv/bin

.PHONY: help setup serve test test-slow test-gpu check ext-cuda bench bench-server bench-peers bundle format demo-crash clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:           ## .venv, pinned dependencies, C++ extension
	@$(PYTHON) server/bootstrap.py

serve: setup     ## run Parley on http://127.0.0.1:8000
	@exec $(BIN)/parley serve

test: setup      ## all tests (those of Chromium and proxies only where they are installed)
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder \
		--max-worker-restart 0 --timeout 400

test-slow: setup ## the long runs, hours; PART=engine for one part (CONTRIBUTING.md lists them)
	@$(BIN)/python -m pytest -m slow $(if $(PART),--part=$(PART)) --timeout 2700

test-gpu: setup  ## the kernels of csrc/cuda, the engine and every architecture, on a GPU
	@PARLEY_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/test_cuda_kernels.py \
		tests/csrc/test_cuda_attention.py tests/csrc/test_cuda_rows.py tests/csrc/test_penalties.py \
		tests/engine/core/ops/test_sampling_reference.py tests/engine/core/attention/test_cuda.py \
		tests/engine/core/attention/test_prompts.py \
		tests/engine/core/models/fused/test_gpu_decoder.py tests/engine/core/models/test_devices.py \
		tests/engine/core/runner/test_bfloat16.py

check: setup     ## ruff, mypy --strict, the direction of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

ext-cuda: setup  ## compile the CUDA kernels, if nvcc is there, and tell what each takes
	@$(BIN)/python -m csrc.build cuda

bundle:          ## the page as a wheel holds it, into build/page (needs npm)
	@node static/bundler/bundle.mjs

format: setup    ## let ruff format and fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: setup     ## decode, chats, time to first token and stop latency beside transformers
	@$(BIN)/python -m bench

demo-crash: setup ## kill -9 the worker of an answer, and watch it go on with the same text
	@$(BIN)/python examples/crash_demo.py

bench-server: setup ## starts, sockets, stops, resume, relay, lists, refusals, fairness: achieved beside target
	@for name in start sockets stop_latency resume relay admin_list timing_leaks fairness; do $(BIN)/python -m bench.$$name || exit 1; done

bench-peers: setup ## vLLM, llama.cpp, OpenVINO, transformers and Parley in turns: hours; ARGS="--quick"
	@$(BIN)/python -m bench.peers $(ARGS)

clean:           ## remove the environment and built kernels; data/ stays
	rm -rf .venv build
