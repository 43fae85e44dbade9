"""``python -m pomona``."""

from pomona.cli import main

main()
