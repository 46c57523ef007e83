"""`python -m dasmil`: the command line, where no program `dasmil` is on the path."""

from dasmil.cli import main

if __name__ == "__main__":
    main()
