"""The entry of the command ``o2nc``.

Outside of the package, whose import is that of torch: in those seconds, too, Ctrl-C is one line and exit code 130.
"""

import sys


def main() -> None:
    """Run the command line (`o2nc.cli.main`)."""
    try:
        from o2nc.cli import main as run

        run()
    except KeyboardInterrupt:
        print("o2nc: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
