# Everything one does with this tree. `make help` lists the tasks.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO    ?= go
TOOLS  = $(GO) tool -modfile=tools/go.mod

# Bounds of `make bench`: how often each case is measured, and for how long.
ROUNDS   ?= 5
DURATION ?= 5s

.PHONY: help
help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build bin/caddy: Caddy with Tollgate
	@echo "building Caddy with Tollgate (the first build takes a few minutes)..."
	@CGO_ENABLED=0 $(GO) build -buildvcs=false -o bin/caddy ./cmd/caddy

.PHONY: run
run: build ## Build, then serve examples/quickstart on :8080
	@echo "serving a limited API on http://localhost:8080; try:  for i in 1 2 3 4 5 6; do curl -i localhost:8080/; done  (Ctrl-C here stops it)"
	@exec bin/caddy run --config examples/quickstart/Caddyfile </dev/null

.PHONY: xcaddy
xcaddy: ## Build bin/caddy-xcaddy, as a user of xcaddy would
	@echo "building Caddy with Tollgate by xcaddy (the first build takes a few minutes)..."
	@$(TOOLS) xcaddy build "$$($(GO) list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)" \
		--with github.com/caddy-tollgate/ratelimit@v0.0.0=. --output bin/caddy-xcaddy </dev/null

.PHONY: deps
deps: ## Install what the tests need: a C compiler (for -race), Redis, PostgreSQL, Prometheus, curl
	@tools/deps.sh compiler redis postgres prometheus curl

.PHONY: test
test: deps build ## Run every test, with the race detector
	TOLLGATE_TEST_CADDY=bin/caddy $(GO) test -race -timeout 30m ./... </dev/null

# Bound of `make fuzz`: how long each target is run.
FUZZTIME ?= 1m

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME; an input that fails is kept in testdata/fuzz
	@grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sort | sed -E 's|/[^/]*:func | |' | \
	while read -r package target; do \
		echo "== $$package $$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null; \
	done

# Bound of `make soak`.
RELOADS ?= 1000

.PHONY: soak
soak: build ## Reload RELOADS times under load, in memory, Redis and Postgres; prints what is held before and after
	TOLLGATE_TEST_CADDY=bin/caddy TOLLGATE_RELOADS=$(RELOADS) $(GO) test -count 1 -parallel 1 -timeout 60m -v \
		-run 'TestReloadsUnderLoad' ./integration_test </dev/null

.PHONY: lint
lint: ## Check with go vet, staticcheck, gofumpt, and who imports whom
	$(GO) vet ./...
	$(TOOLS) staticcheck ./...
	@$(MAKE) --no-print-directory format-check
	$(GO) test ./internal/archtest

.PHONY: format
format: ## Rewrite the Go files as gofumpt wants them
	$(TOOLS) gofumpt -w .

.PHONY: format-check
format-check:
	@files="$$($(TOOLS) gofumpt -l .)"; \
	if [ -n "$$files" ]; then printf 'not formatted (make format does it):\n%s\n' "$$files" >&2; exit 1; fi

.PHONY: verify
verify: format-check ## Check that go.mod, go.sum and formatting are current
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff

.PHONY: bench
bench: build ## Measure decisions in memory, then requests/s against plain Caddy (takes minutes)
	@tools/deps.sh redis wrk
	$(GO) test -run '^$$' -bench . -benchmem ./memorybackend/... </dev/null
	$(GO) run ./cmd/bench -caddy bin/caddy -rounds $(ROUNDS) -duration $(DURATION) </dev/null

# Which profiles `make load` runs: a pattern of their names; all without.
PROFILES ?=

.PHONY: load
load: build ## Send load whose outcome is known; compare clients and metrics (minutes)
	@tools/deps.sh redis postgres
	$(GO) run ./cmd/loadtest -caddy bin/caddy -run "$(PROFILES)" </dev/null

.PHONY: faults
faults: build ## Break Redis in every known way; print the table of docs/failure-modes.md (a minute)
	@tools/deps.sh redis
	$(GO) run ./cmd/faults -caddy bin/caddy </dev/null

.PHONY: clean
clean: ## Remove what the tasks built
	rm -rf bin
