"""`python -m maskjet` is the command `maskjet`."""

from maskjet.cli.main import main

if __name__ == "__main__":  # spawned processes import this module again
    main()
