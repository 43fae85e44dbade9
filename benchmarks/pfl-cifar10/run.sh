#!/usr/bin/env bash
# The CIFAR-10 speed set-up of pfl-research, cut down; needs CIFAR-10 below POMONA_DATA.
#   benchmarks/pfl-cifar10/run.sh [OUT] [key=value ...]
# A fifth of the federation, 200 clients, of which 50 take part: a round is the same work as in the whole, which is
#   clients=1000 participation=0.05 data.train_limit=50000 data.test_limit=10000 rounds=1500
# and takes some 6 GB of memory. Seconds of each round are in OUT/rounds.csv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/pfl-cifar10}
shift || true
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
fifth="clients=200 participation=0.25 data.train_limit=10000 data.test_limit=2000"
# shellcheck disable=SC2086
pomona run fedavg "$here/pfl-cifar10.toml" $fifth "$@" --out "$out" --no-report
