# Insula: many kernels, one machine. `make` lists what can be made.
#
# Everything built or fetched goes to build/ and, what cargo builds, to target/.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The base's kernel for `make shell`, `make module`: 6.1, 6.12, 6.1-generic, 6.12-generic.
KERNEL ?=
# Which part of `make soak`; all if empty.
PART ?=

# Cargo may just have been installed by `make deps`, where no PATH has it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

kernel_option := $(if $(KERNEL),--kernel $(KERNEL))
testbed := cargo run --quiet --package testbed --bin testbed --

.PHONY: help
help: ## list what can be made
	@echo 'Insula: many kernels, one machine.'
	@echo
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

.PHONY: deps
deps: ## install the Debian packages that are needed, and Rust if it is missing
	@scripts/deps

# The test bed's command, with cargo's progress: the first time takes a minute.
.PHONY: testbed
testbed: deps
	@cargo build --package testbed --bin testbed

.PHONY: build
build: testbed kernels agent ## build the command, the libraries, the kernels and the module
	@cargo build --release --package insula --package insula-server
	@$(testbed) module $(kernel_option)

.PHONY: module
module: testbed ## build insula.ko for the test bed's kernels, or KERNEL=6.12
	@$(testbed) module $(kernel_option)

.PHONY: kernels
kernels: deps ## build our own kernels: the lightweight kernel and the monitor of confined nodes
	@scripts/kernels

.PHONY: agent
agent: deps ## build the agent, the first process of Linux nodes used as containers
	@scripts/agent

.PHONY: deb
deb: deps ## build the Debian packages, into build/packages
	@scripts/deb

.PHONY: demo
demo: ## watch kernels run side by side on an emulated machine
	@scripts/deps --no-tests
	@scripts/demo

.PHONY: record
record: deps ## record make demo as an animation for the README, on a terminal
	@scripts/record

.PHONY: test
test: deps ## run all tests, on Debian's 6.1 and 6.12, on emulated machines
	@scripts/test

.PHONY: soak
soak: testbed ## play scenarios in long counts and print the figures, or only PART=name
	@KERNEL=$(KERNEL) scripts/soak $(PART)

.PHONY: bench
bench: testbed ## run the benchmarks, into target/bench, or with RECORD=1 for the repository
	@$(testbed) fetch --bench
	@scripts/bench

.PHONY: shell
shell: testbed ## open a root shell on an emulated machine, with KERNEL=6.1 on that kernel
	@$(testbed) shell $(kernel_option)

.PHONY: fmt
fmt: ## format the sources
	@cargo fmt --all

.PHONY: lint
lint: ## check format, words and style of the sources
	@scripts/lint

.PHONY: clean
clean: ## remove everything that was built or fetched
	@rm -rf build target
