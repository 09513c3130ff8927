"""The program `tidings`, also as `python -m tidings`."""

import os
import signal


def main() -> None:
    """Runs `tidings.cli.main`; Ctrl-C while it is still being loaded ends it as later: with code 130, and quietly."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Not so under nohup, for one.
    if is_default:
        # Raised in the middle of an import, KeyboardInterrupt becomes another error. Nothing has been done yet.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from tidings.cli import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # After all was done, or before it began.
        os._exit(130)


if __name__ == "__main__":
    main()
