#!/usr/bin/env bash
# One would guess: run_simulation without the extra `simulation` raises an ImportError, or at worst SystemExit, which a
# notebook, a test runner or an `except` survives.
# What happens (flwr 1.42.0): it raises SystemExit, and five seconds later a thread ends the whole process with exit code
# 1, though the exit was caught: a pytest session stops in the middle of a later test, without its summary.
set -euo pipefail
folder=$(mktemp -d); cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv env
env/bin/pip install -q --disable-pip-version-check flwr==1.42.0
cat > caught.py <<'W'
import sys
import time

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

server = ServerApp()


@server.main()
def main(grid, context):
    pass


try:
    run_simulation(server, ClientApp(), num_supernodes=2)
except SystemExit as stop:
    print("caught SystemExit", stop.code, flush=True)
else:
    print("nothing was raised", flush=True)
for second in range(30):
    time.sleep(1)
    print("alive for", second + 1, "s", flush=True)
print("went on", flush=True)
W
code=0
FLWR_TELEMETRY_ENABLED=0 env/bin/python caught.py > out.log 2> err.log || code=$?
env/bin/pip list --disable-pip-version-check 2> /dev/null | grep -i '^flwr '
grep -v alive out.log
echo "alive for $(grep -c alive out.log) s after it was caught; exit code $code"
grep -q 'caught SystemExit 1' out.log && ! grep -q 'went on' out.log && [ "$code" = 1 ] && [ "$(grep -c alive out.log)" -lt 15 ]
