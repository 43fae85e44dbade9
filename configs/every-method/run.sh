#!/usr/bin/env bash
# Every registered method on one scenario. Finished runs are kept.
#   configs/every-method/run.sh mnist|ag-news [OUT] [key=value ...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scenario=${1:?mnist or ag-news}
out=${2:-runs/every-method/$scenario}
for method in $(pomona methods --json | python3 -c 'import json, sys; print(*json.load(sys.stdin))'); do
  [ "$method" = fedavg-local ] && continue # a view of the fedavg run
  [ -e "$out/$method/summary.json" ] || pomona run "$method" "$here/$scenario.toml" "${@:3}" --out "$out/$method" --no-report
done
pomona compare "$out"
