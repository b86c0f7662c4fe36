"""The command ``o2nc``. Nothing is imported before `main`, so Ctrl-C during the imports is one line and code 130."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from o2nc_experiments.cli import main as run

        run()
    except KeyboardInterrupt:
        print("o2nc: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
