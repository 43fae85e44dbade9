"""``python -m pomona``."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, whose files are not part of this program

from pomona.cli import main

main()
