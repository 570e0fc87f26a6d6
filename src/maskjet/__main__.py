"""`python -m maskjet` is the command `maskjet`."""

from maskjet.cli import main

main()
