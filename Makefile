# The README's two commands, and their parts. `make help` lists them.

.PHONY: run test build gangs lint unit lab audit fuzz random bench bench-simulator bench-lab install deb packages-run packages-test help
.DEFAULT_GOAL := help

CARGO ?= cargo
PREFIX ?= /usr/local
# The kernel backend, if it can be built; evaluated when needed, since packages may be installed before.
FEATURES = $(shell scripts/features)
# `commonhold NAME` runs commonhold-NAME from the same folder.
PROGRAMS = commonhold commonhold-top commonhold-serve commonhold-record commonhold-sim commonhold-scale commonhold-generate
# Where cargo builds; honours CARGO_TARGET_DIR.
TARGET = $(shell CARGO=$(CARGO) scripts/target)
# After scripts/packages: if packages cannot be installed here, tests that need them are skipped. A package that could not be
# installed though it should have been is an error.
MAY_LACK = || [ $$? -eq 3 ]

run: packages-run build ## install missing packages, build, and show the benefit of isolation and sharing on this machine
	$(TARGET)/release/commonhold demo

test: packages-test lint unit lab ## all tests of the project, including the lab where it can run

build: ## the programs, in target/release (or in $$CARGO_TARGET_DIR/release)
	$(CARGO) build --release --locked --workspace --bins $(FEATURES)

gangs: ## the library and programs of gangs, in target/gangs (docs/gangs.md)
	scripts/gangs

lint: ## formatting, lints, import rules, and the documents' sentences and links, warnings forbidden
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked $(FEATURES) -- --deny warnings
	scripts/rooms
	scripts/width
	scripts/prose
	bench/all --check
	bench/test_all.py
	bench/test_hardware.py

unit: ## tests on this machine: unit, property, golden, and on real processes
	scripts/unit-tests $(CARGO) test --workspace --locked $(FEATURES)

lab: ## tests on an 8-CPU, 4-node virtual machine: the short ones (lab/test --all: also the long ones)
	lab/test

audit: ## licences, sources and advisories of dependencies, by cargo-deny
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "cargo-deny is missing: install it with 'cargo install --locked cargo-deny'"; exit 1; }
	$(CARGO) deny check

fuzz: ## the parsers under libFuzzer, for a minute each (needs a nightly toolchain)
	fuzz/run 60 contract
	fuzz/run 60 scenario
	fuzz/run 60 workloads
	fuzz/run 60 recording

random: ## 20,000 random scenarios, 2,000 of nested disciplines, 300 contracts prone to starvation, and each kernel call failing once
	COMMONHOLD_SCENARIOS=20000 $(CARGO) test --release --locked --package commonhold-sim --test random_scenarios
	COMMONHOLD_SCENARIOS=300 $(CARGO) test --release --locked --package commonhold-sim --test starvation
	COMMONHOLD_FAULTS=all $(CARGO) test --locked --package commonhold-live --test faults_cgroup

bench: ## measure the rows of PROMISES.md and docs/benchmarks.md, and update them (bench/all --help: also the lab's)
	bench/all

bench-simulator: ## the simulator's speed, and other simulators' on the same workload
	@scripts/packages scripts/packages-bench $(MAY_LACK)
	bench/simulator

bench-lab: ## compare CPU schedulers in the lab: the kernel's own, others', and Commonhold's
	@scripts/packages lab/packages $(MAY_LACK)
	bench/lab

install: build ## programs, man pages and completions below $(PREFIX)
	install -D -t $(DESTDIR)$(PREFIX)/bin $(PROGRAMS:%=$(TARGET)/release/%)
	$(TARGET)/release/commonhold generate man $(DESTDIR)$(PREFIX)/share/man
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(TARGET)/release/commonhold generate completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/commonhold
	$(TARGET)/release/commonhold generate completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_commonhold

deb: ## a package for Debian, below target/debian, by cargo-deb
	scripts/deb

# Debian packages: installed by root, named to other users. The demonstration works without the kernel backend; tests do not.
packages-run:
	@scripts/packages scripts/packages-run
	@scripts/packages scripts/packages-kernel || echo "going on: without them there is no kernel backend"

packages-test:
	@scripts/packages scripts/packages-run scripts/packages-test
	@scripts/packages scripts/packages-kernel lab/packages $(MAY_LACK)

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done
