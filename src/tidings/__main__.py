"""`python -m tidings` is `tidings`."""

from tidings.cli import main

if __name__ == "__main__":
    main()
