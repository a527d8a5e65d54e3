#!/bin/sh
# The whole of the fault bench:  sh scripts/faults.sh [folder in memory, default /dev/shm]
# Takes some twenty minutes. Results as measured are in docs/reliability.md.

. "$(dirname "$0")/env.sh"

folder=${1:-/dev/shm}
python="$venv/bin/python"
status=0
run() { echo "== $*"; "$@" || status=1; }

run "$python" tests/faults/bench.py cuts --folder "$folder"
run "$python" tests/faults/bench.py cuts --codec gzip --folder "$folder"
run "$python" tests/faults/bench.py power --count 700 --folder "$folder"
run "$python" tests/faults/bench.py calls --folder "$folder"
run "$python" tests/faults/bench.py kills --count 170
run "$python" tests/faults/bench.py kills --count 90 --seed 1
run unshare -rm sh -c 'mount -t tmpfs -o size=1536k tmpfs "$0" && exec "$@"' "$folder" \
    "$python" tests/faults/bench.py full --folder "$folder"
run "$python" tests/faults/flips.py --count 10000
run "$python" tests/faults/flips.py --count 10000 --seed 1
run "$python" tests/faults/readers.py reads --count 1000000
run "$python" tests/faults/readers.py soak
run "$python" tests/hostile/fuzz.py --count 100000 --seed 12
exit $status
