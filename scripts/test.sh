#!/bin/sh
# Style, types, then the tests with their coverage:  sh scripts/test.sh [arguments for pytest]
# The coverage must reach the floor in setup.cfg; with arguments it is only shown, for they may pick a few tests.

. "$(dirname "$0")/env.sh"

status=0
"$venv/bin/flake8" h5store tests scripts || status=1
"$venv/bin/mypy" || status=1

if [ $# -gt 0 ]; then set -- --cov-fail-under=0 "$@"; fi
# Two processes; each begins with half of the files, so that what a file's tests share is made once. For one: -n 0.
"$venv/bin/pytest" -n 2 --dist worksteal --cov=h5store "$@" || status=1
exit $status
