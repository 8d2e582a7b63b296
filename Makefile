# The front door. Everything real is in scripts/ (each says at its head what it does) and in meson.build.
#
#   make run  PORT=8080 MODEL=/path/to/model.gguf ARGS="--ctx-size 8192 --parallel 2"
#   make test SAN=address|thread
#
# HEARTH_CACHE (default ~/.cache/hearth) holds what is fetched or built once; HEARTH_LLAMA=/prefix uses an installed
# llama.cpp; HEARTH_CUDA=1 builds it for NVIDIA GPUs.

.DEFAULT_GOAL := help
.PHONY: help build run cluster test test-long bench soak lint fuzz fuzz-long coverage pictures faults zoo peer install clean

export SAN PORT MODEL ARGS LEAST
PREFIX ?= /usr/local

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS='	' read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

build: ## Build the program: build/hearth
	@scripts/build.sh hearth >/dev/null

run: ## Build, fetch a small model, and serve it on 127.0.0.1:8080 (PORT=, MODEL=, ARGS=)
	@scripts/run.sh

cluster: ## Two boxes with a shared store behind one address, on 127.0.0.1:8000 (PORT=, MODEL=, ARGS=); needs redis, haproxy
	@scripts/cluster.sh

test: ## Build and run the tests (SAN=address or SAN=thread for sanitizers)
	@scripts/test.sh

test-long: ## What is too long for each change: more cases of the same kinds
	@scripts/test.sh long

bench: ## Make the record: hearth beside llama-server, into bench/report (ARGS=--quick, ARGS="restart -np 1", ARGS=--list)
	@scripts/bench.sh $(ARGS)

soak: ## A day of traffic in an hour, with clients that misbehave (ARGS="--minutes 5", ARGS=sim, ARGS=real)
	@scripts/soak.sh $(ARGS)

lint: ## Check layers, lengths and words, and that clang has no warnings
	@scripts/lint.sh

fuzz: ## Fuzz what reads strangers' bytes, each for a minute (ARGS=seconds, ARGS=merge, ARGS=lines)
	@scripts/fuzz.sh $(ARGS)

fuzz-long: ## The same for hours (ARGS=hours, default 8)
	@scripts/fuzz.sh hours $(ARGS)

pictures: ## Take the pictures of the page for README.md, with Chromium, into docs/
	@scripts/pictures.sh

coverage: ## Say which lines of src/ the tests reach (ARGS=quick, ARGS=c, ARGS=report)
	@scripts/coverage.sh $(ARGS)

faults: ## Refuse every allocation and fail every system call once (the tests try a share of them)
	@scripts/faults.sh

zoo: ## Prove export and import of state on every architecture of llama.cpp
	@scripts/zoo.sh

peer: ## Build llama-server from the same source and flags, for comparison
	@scripts/setup.sh && scripts/deps.sh peer

install: build ## Install the program and the library (PREFIX=/usr/local, DESTDIR=)
	@scripts/install.sh "$(PREFIX)"

clean: ## Remove the build directories (the cache stays)
	@rm -rf build build-address build-thread build-clang build-fuzz build-coverage
