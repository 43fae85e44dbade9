"""``python -m pomona``."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder: what lies there is no part of this program

from pomona.cli import main

main()
