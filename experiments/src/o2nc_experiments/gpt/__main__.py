"""The same as ``o2nc gpt`` where only torch is installed: prints Markdown; ``o2nc report`` shows its gpt.json."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from o2nc_experiments.cifar10.processes import find_world
from o2nc_experiments.gpt import arms, results
from o2nc_experiments.gpt.experiment import TERMINATED, Watch
from o2nc_experiments.gpt.options import Options
from o2nc_experiments.gpt.study import conduct

KINDS = {"data": Path, "out": Path, "save_every": float, "horizons": str, "seeds": str, "sweep": str, "device": str}


def main() -> None:
    """Make the runs, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m o2nc_experiments.gpt", description=arms.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for field in fields(Options):
        name = f"--{field.name.replace('_', '-')}"
        if field.name == "arm":
            parser.add_argument(name, action="append", help="may be repeated")
        elif isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(name, type=KINDS.get(field.name, int), default=field.default)
    given = vars(parser.parse_args())
    options = Options(**given | {"arm": tuple(given["arm"] or ())})
    first = find_world().rank == 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        found, goal, record = conduct(options, lambda text: first and print(text, flush=True), _unwatched)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    if not first:
        return
    lines = results.make_lines(goal, found.rows)
    tables = [results.grids(goal, found.rows), results.losses(goal, lines), results.paired(goal, lines)]
    for table in [*tables, results.costs(found.costs) if found.costs else None]:
        if table is not None:
            print(f"\n{table.markdown()}")
    print(f"\n{results.verdict(goal, lines)}\n{results.speed(record)}")


@contextmanager
def _unwatched(steps: int) -> Iterator[Watch]:
    yield lambda run, made, known: None


if __name__ == "__main__":
    main()
