"""An NVFlare silo that sends back what it gets; the first one records the time. Run by NVFlare."""

import sys
import time
from pathlib import Path

import nvflare.client as flare

flare.init()
first = flare.get_site_name() == "site-1"
while flare.is_running():
    got = flare.receive()
    if got is None:
        break
    if first:
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{time.time()}\n")
    flare.send(flare.FLModel(params=got.params, params_type=got.params_type))
