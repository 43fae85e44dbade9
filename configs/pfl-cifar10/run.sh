#!/usr/bin/env bash
# The CIFAR-10 speed set-up of pfl-research, cut down to 20 rounds; needs CIFAR-10 below POMONA_DATA.
#   configs/pfl-cifar10/run.sh [OUT] [key=value ...]        the whole of it: rounds=1500
# The closing lines tell the seconds of all rounds; seconds of each round are in OUT/rounds.csv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/pfl-cifar10}
shift || true
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
pomona run fedavg "$here/pfl-cifar10.toml" "$@" --out "$out" --no-report
