#!/usr/bin/env bash
# One would guess: SuperLink starts one ServerApp for a run, and waits for it however long its imports take.
# What happens (flwr 1.42.0): an app that has not reported after 30 s is started again next to the first, and again every
# 30 s; each new one invalidates the token of the one before. On a machine where starting takes longer, as a loaded one
# where PyTorch is imported, no app ever begins, and the run stays pending. Takes three minutes.
set -euo pipefail
folder=$(mktemp -d); cd "$folder"; link=
trap '[ -z "$link" ] || kill "$link" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv env
env/bin/pip install -q --disable-pip-version-check flwr==1.42.0
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p home slow app/parts
cat > slow/flwr-serverapp <<W
#!/usr/bin/env bash
date +%s >> $folder/starts
sleep 50
exec $folder/env/bin/flwr-serverapp "\$@"
W
chmod +x slow/flwr-serverapp
cat > home/config.toml <<W
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:$port"
insecure = true
W
cat > app/pyproject.toml <<W
[project]
name = "app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "example"
[tool.flwr.app.components]
serverapp = "parts.app:server"
clientapp = "parts.app:client"
[tool.flwr.app.config]
W
touch app/parts/__init__.py
cat > app/parts/app.py <<W
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    Path("$folder/began").touch()
W
export PATH=$folder/slow:$folder/env/bin:$PATH FLWR_HOME=$folder/home FLWR_TELEMETRY_ENABLED=0
flower-superlink --insecure --port "$port" --disable-runtime-dependency-installation > link.log 2>&1 & link=$!
for _ in $(seq 60); do grep -q "Uvicorn running" link.log && break; sleep 1; done
(cd app && flwr run . here)
sleep 115
echo "seconds between starts of the app: $(awk 'NR > 1 {printf "%d ", $1 - last} {last = $1}' starts)"
echo "tokens refused: $(grep -c 'task-token authentication failed' link.log)"
[ "$(wc -l < starts)" -ge 3 ] && [ ! -e began ] && [ "$(grep -c 'task-token authentication failed' link.log)" -ge 1 ]
