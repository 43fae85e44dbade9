#!/usr/bin/env bash
# APPLE's table 1 for MNIST, both settings, at the size of the configs beside this file. Finished runs are kept.
#   reproduction/apple-mnist/run.sh [OUT] [key=value ...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/apple-table1}
shift || true
for setting in practical pathological; do
  run() { # name, method, further files and settings
    local folder="$out/$setting/$1"
    [ -e "$folder/summary.json" ] || pomona run "$2" "$here/mnist-$setting.toml" "${@:3}" --out "$folder" --no-report
  }
  run separate separate "$@"
  run fedavg fedavg "$@"
  run fedavg-ft fedavg-ft "$@"
  run fedprox-ft fedprox-ft method.mu=0.01 "$@"
  run apple-mu0 apple "$here/apple-$setting.toml" method.mu=0 "$@"
  run apple apple "$here/apple-$setting.toml" "$@"
  pomona compare "$out/$setting"
  pomona report "$out/$setting" --out "$out/$setting"
done
