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
deps: ## Install what the tests need: a C compiler (for -race), Redis, PostgreSQL
	@tools/deps.sh compiler redis postgres

.PHONY: test
test: deps build ## Run every test, with the race detector
	TOLLGATE_TEST_CADDY=bin/caddy $(GO) test -race -timeout 30m ./... </dev/null

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

.PHONY: clean
clean: ## Remove what the tasks built
	rm -rf bin
