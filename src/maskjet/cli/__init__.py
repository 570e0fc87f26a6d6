"""The command line. A command imports what it needs when it runs, so that help needs no PyTorch."""
