"""The program `tidings`, also as `python -m tidings`."""

import sys


def main() -> None:
    """Runs `tidings.cli.main`; Ctrl-C while it is still being loaded ends it as later: with code 130, and quietly."""
    try:
        from tidings.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
