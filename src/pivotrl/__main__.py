"""`pivotrl` and `python -m pivotrl`."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C, and what a scheduler sends, end it in one line from its first moment on."""
    for one in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(one) is signal.SIG_DFL:
            signal.signal(one, signal.default_int_handler)
    try:
        from pivotrl.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
