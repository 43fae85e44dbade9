"""Forks processes that run ``pomona``: real processes that can be killed, without the seconds for
importing PyTorch.

Requests come on standard input, one line of JSON each: ``{"arguments": [...], "log": PATH, "fault":
[NAME, ...]}`` starts a process in its own group whose output goes to the log, and returns its id;
``{"wait": ID, "seconds": S}`` returns its exit code, minus the signal for a killed process, or null
if it is still running.
"""

import faulthandler
import json
import os
import signal
import sys
import time

import faults
import sklearn.datasets  # noqa: F401
import torch

import pomona.cli.run_outcome  # noqa: F401
from pomona.cli import main

codes = {}


def serve():
    """Answer until input ends; in a forked process, return the request."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = waited(request["wait"], request["seconds"])
        else:
            answer = os.fork()
            if answer == 0:
                return request
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    sys.exit()


def waited(process, seconds):
    """The exit code of a process if it ends within this many seconds."""
    deadline = time.monotonic() + seconds
    while process not in codes:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            codes[process] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= deadline:
            return None
        else:
            time.sleep(0.002)
    return codes[process]


torch.set_num_threads(1)
request = serve()
os.setsid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests' parent may ignore it
log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
    os.dup2(target, stream)
faulthandler.enable()  # SIGABRT prints where a process hangs
if request["fault"]:
    name, *details = request["fault"]
    getattr(faults, name)(*details)
main(request["arguments"])
