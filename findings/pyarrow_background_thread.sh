#!/usr/bin/env bash
# One would guess: importing pyarrow starts no thread as long as nothing is computed, so that a process may fork after it.
# What happens: pyarrow 26.0.1 on Linux starts jemalloc's background thread on import, although its own allocations go
# through mimalloc. JE_ARROW_MALLOC_CONF=background_thread:false, set before the import, prevents it.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pyarrow==26.0.1
cd "$folder"
count='import os, pyarrow; print(len(os.listdir("/proc/self/task")))'
usual=$(PYTHONPATH=$folder python3 -c "$count")
without=$(JE_ARROW_MALLOC_CONF=background_thread:false PYTHONPATH=$folder python3 -c "$count")
pool=$(PYTHONPATH=$folder python3 -c 'import pyarrow; print(pyarrow.default_memory_pool().backend_name, pyarrow.__version__)')
echo "threads after the import: $usual; with background_thread:false: $without; allocator and version: $pool"
[ "$usual" -eq $((without + 1)) ] && [ "$pool" = "mimalloc 26.0.1" ]
