#!/usr/bin/env bash
# One would guess: a node repeats a sign of life that its SuperLink answers with 500 (a full disk, for a minute), as it does
# after 502, 503 and 504; or the node ends, so that whoever watches it starts it again.
# What happens (flwr 1.42.0): the thread of the signs of life ends with a traceback, and the node lives on. It keeps asking
# for messages, but as it shows no sign of life it counts as offline and gets none any more.
set -euo pipefail
folder=$(mktemp -d); cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv env
env/bin/pip install -q --disable-pip-version-check flwr==1.42.0
cat > node.py <<'W'
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.proto import fleet_pb2, heartbeat_pb2
from flwr.supernode.fleet_http_connection import http_request_response

ANSWERS = {
    "register-node": fleet_pb2.RegisterNodeFleetResponse(node_id=7),
    "activate-node": fleet_pb2.ActivateNodeResponse(node_id=7),
    "deactivate-node": fleet_pb2.DeactivateNodeResponse(),
    "unregister-node": fleet_pb2.UnregisterNodeFleetResponse(),
    "pull-messages": fleet_pb2.PullMessagesResponse(),
    "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatResponse(success=True),
}
asked = Counter()


class SuperLink(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.path.rsplit("/", 1)[1]
        asked[kind] += 1
        first = kind == "send-node-heartbeat" and asked[kind] == 1
        body = b"" if first else ANSWERS[kind].SerializeToString()
        self.send_response(500 if first else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
threading.Thread(target=server.serve_forever, daemon=True).start()
with http_request_response(f"127.0.0.1:{server.server_port}", insecure=True) as connection:
    receive = connection[1]
    for second in range(75):
        time.sleep(1)
        receive()
print("seconds 75, requests for messages", asked["pull-messages"] > 60, "signs of life", asked["send-node-heartbeat"])
W
FLWR_TELEMETRY_ENABLED=0 timeout 200 env/bin/python node.py > out.log 2> err.log || true
env/bin/pip list --disable-pip-version-check 2> /dev/null | grep -i '^flwr '
grep -E 'Exception in thread|HTTPStatusError: Server error' err.log || tail -5 err.log
cat out.log
grep -q 'requests for messages True signs of life 1$' out.log
