"""``python -m o2nc``: the command line, which is a distribution of its own."""

import sys

if __name__ == "__main__":
    try:
        from o2nc_experiments.__main__ import main
    except ModuleNotFoundError:
        sys.exit("The command line is a package of its own: pip install o2nc-experiments")
    main()
