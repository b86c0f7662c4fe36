"""The same as ``o2nc gpt`` where only torch is installed: prints Markdown; ``o2nc report`` shows its gpt.json."""

from collections.abc import Iterator
from contextlib import contextmanager

from o2nc_experiments.console import ending
from o2nc_experiments.gpt import arms, results
from o2nc_experiments.gpt.experiment import Watch
from o2nc_experiments.gpt.options import Options
from o2nc_experiments.gpt.study import conduct
from o2nc_experiments.options import read
from o2nc_experiments.processes import find_world


def main() -> None:
    """Make the runs, print the tables."""
    options = read(Options, "python -m o2nc_experiments.gpt", str(arms.__doc__))
    first = find_world().rank == 0
    with ending():
        found, goal, record = conduct(options, lambda text: first and print(text, flush=True), _unwatched)
    if not first:
        return
    for table in results.tables(goal, found):
        print(f"\n{table.markdown()}")
    lines = results.make_lines(goal, found.rows)
    print(f"\n{results.verdict(goal, lines)}\n{results.speed(record)}")


@contextmanager
def _unwatched(steps: int) -> Iterator[Watch]:
    yield lambda run, made, known: None


if __name__ == "__main__":
    main()
