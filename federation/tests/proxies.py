"""Real HTTP proxies on loopback that require a password: squid and tinyproxy, as packaged by
Debian.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from base64 import b64encode
from pathlib import Path

import pytest

USER, PASSWORD = "me", "s3cret-word-of-this-test"

TINYPROXY = """
Port {port}
Listen 127.0.0.1
Timeout 600
MaxClients 50
Allow 127.0.0.1
ConnectPort {allowed}
BasicAuth {user} {password}
"""
SQUID = """
http_port 127.0.0.1:{port}
cache_effective_user {account}
visible_hostname test
pid_filename none
cache_log /dev/null
access_log none
cache deny all
auth_param basic program /bin/sh {folder}/judge.sh
auth_param basic credentialsttl 1 second
acl known proxy_auth REQUIRED
acl server port {allowed}
http_access deny !server
http_access allow known
http_access deny all
shutdown_lifetime 0 seconds
"""
JUDGE = """
while read -r line; do
    [ "$line" = "{user} {password}" ] && echo OK || echo ERR
done
"""


class Proxy:
    """One proxy, which forwards clients with the password to one port of this machine."""

    def __init__(self, program_name, allowed):
        self.allowed = allowed
        self.kind, self.folder = program_name, Path(tempfile.mkdtemp(prefix="proxy-"))
        program = shutil.which(
            program_name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
        )
        if not program:
            pytest.skip(f"{program_name} is not installed")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # squid leaves root's account, and its judge has to be read from there
        self.folder.chmod(0o755)
        account = "nobody" if os.getuid() == 0 else os.environ.get("USER", "nobody")
        values = {
            "port": self.port,
            "allowed": allowed,
            "user": USER,
            "password": PASSWORD,
            "folder": self.folder,
        }
        (self.folder / "judge.sh").write_text(JUDGE.format(**values))
        text = {"squid": SQUID, "tinyproxy": TINYPROXY}[program_name]
        (self.folder / "conf").write_text(text.format(**values, account=account))
        for path in self.folder.iterdir():
            path.chmod(0o644)  # a previous test may have changed the umask
        option = {"squid": ["-N", "-f"], "tinyproxy": ["-d", "-c"]}[program_name]
        self.command = [program, *option, str(self.folder / "conf")]
        self.process = None
        self.start()

    def start(self):
        """Start it, also after ``stop``, and wait until it takes the password: squid listens before
        its helper runs.
        """
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if self._answer() not in (b"", b"407"):
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.process.kill()
        self.process.wait()
        pytest.fail(f"{self.kind} does not come up")

    def _answer(self):
        """The status of a tunnel to the allowed port, with the password."""
        credentials = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        head = (
            f"CONNECT 127.0.0.1:{self.allowed} HTTP/1.1\r\nProxy-Authorization: Basic "
            f"{credentials}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), 10) as link:
            link.sendall(head.encode())
            return link.recv(100)[9:12]

    def stop(self):
        """Kill it, with all connections through it."""
        self.process.kill()
        self.process.wait()

    def remove(self):
        """Remove all its files."""
        self.stop()
        shutil.rmtree(self.folder)
