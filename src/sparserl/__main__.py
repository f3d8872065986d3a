"""`python -m sparserl` is the same as `sparserl`."""

from sparserl.cli import main

main()
