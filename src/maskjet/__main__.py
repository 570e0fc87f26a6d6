"""`python -m maskjet` is the command `maskjet`."""

from maskjet.cli.main import main

if __name__ == "__main__":  # processes that draw streets import this module again
    main()
