"""`pivotrl` and `python -m pivotrl`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it in one line from its first moment on."""
    try:
        from pivotrl.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
