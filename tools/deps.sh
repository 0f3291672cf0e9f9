#!/usr/bin/env bash
# Makes sure that what the tests and benchmarks run is installed: does nothing
# when it is, installs it with apt-get when run as root on Debian or Ubuntu,
# and otherwise says what to install and fails.
#
# usage: tools/deps.sh <what>...      what: compiler, redis, postgres, prometheus, curl, wrk
set -euo pipefail

redis_minimum=6.2
postgres_minimum=15
curl_minimum=7.82

# at_least VERSION MINIMUM: whether a version is new enough.
at_least() {
	[ -n "$1" ] && [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

has_compiler() {
	local cc=${CC:-gcc}
	echo 'int main(void) { return 0; }' | "$cc" -x c -include stdlib.h -o /dev/null - 2>/dev/null
}

has_redis() {
	local version
	version=$("${TOLLGATE_TEST_REDIS_BINARY:-redis-server}" --version 2>/dev/null | sed -n 's/.* v=\([0-9.]*\).*/\1/p') || true
	at_least "$version" "$redis_minimum"
}

# Debian keeps the server's programs out of PATH, one folder per version.
has_postgres() {
	local postgres version
	for postgres in "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$postgres" ] || continue
		version=$("$postgres" --version | sed -n 's/.* \([0-9][0-9.]*\).*/\1/p')
		if at_least "$version" "$postgres_minimum"; then return 0; fi
	done
	return 1
}

has_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

# The README's commands use --json.
has_curl() { at_least "$(curl --version 2>/dev/null | sed -n 's/^curl \([0-9.]*\).*/\1/p')" "$curl_minimum"; }

has_wrk() { command -v wrk >/dev/null; }

# needs WHAT: how a person calls it.
needs() {
	case $1 in
	compiler) echo "a C compiler with the C library's headers (the race detector needs it)" ;;
	redis) echo "redis-server $redis_minimum or newer (or name one in TOLLGATE_TEST_REDIS_BINARY)" ;;
	postgres) echo "PostgreSQL $postgres_minimum or newer, the server" ;;
	prometheus) echo "Prometheus, and its promtool" ;;
	curl) echo "curl $curl_minimum or newer" ;;
	wrk) echo "wrk, the load generator" ;;
	esac
}

# packages WHAT: Debian's names of it.
packages() {
	case $1 in
	compiler) echo gcc libc6-dev ;;
	redis) echo redis-server ;;
	postgres) echo postgresql ;;
	prometheus) echo prometheus ;;
	curl) echo curl ;;
	wrk) echo wrk ;;
	esac
}

# Sets missing to those of the arguments that are not there.
look() {
	local what
	missing=()
	for what in "$@"; do
		case $what in
		compiler | redis | postgres | prometheus | curl | wrk) "has_$what" || missing+=("$what") ;;
		*)
			echo "tools/deps.sh: unknown dependency '$what'; write compiler, redis, postgres, prometheus, curl or wrk" >&2
			exit 2
			;;
		esac
	done
}

install_missing() {
	local what names=()
	for what in "${missing[@]}"; do
		read -ra words <<<"$(packages "$what")"
		names+=("${words[@]}")
	done
	echo "installing ${names[*]}..."
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq </dev/null
	apt-get install -y -qq --no-install-recommends "${names[@]}" </dev/null
}

explain_missing() {
	local what
	for what in "${missing[@]}"; do
		echo "missing: $(needs "$what")" >&2
		echo "         Debian and Ubuntu: sudo apt-get install $(packages "$what")" >&2
	done
	if [ "$(id -u)" -ne 0 ]; then
		echo "Run as root on Debian or Ubuntu, this task installs it by itself." >&2
	fi
}

look "$@"
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
	install_missing
	look "$@"
fi
if [ ${#missing[@]} -gt 0 ]; then
	explain_missing
	exit 1
fi
