"""The same as ``o2nc cifar10`` where only torch is installed: prints Markdown; ``o2nc report`` shows its record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from o2nc_experiments import record
from o2nc_experiments.cifar10 import arms, results
from o2nc_experiments.cifar10.checkpoints import NAME, TrialLog
from o2nc_experiments.cifar10.data import Progress
from o2nc_experiments.cifar10.options import Options
from o2nc_experiments.cifar10.study import Shown, Watch, conduct, print_lines
from o2nc_experiments.console import ending
from o2nc_experiments.options import read
from o2nc_experiments.processes import find_world


def main() -> None:
    """Train, print the tables."""
    given = read(Options, "python -m o2nc_experiments.cifar10", str(arms.__doc__))
    first = find_world().rank == 0

    def say(text: str) -> None:
        if first and not given.quiet:
            print(text, flush=True)

    @contextmanager
    def watching(logs: Sequence[TrialLog], epochs: int) -> Iterator[Watch]:
        yield print_lines(say)

    def keep(found: dict[str, Any]) -> None:
        record.write(given.out / NAME, found)
        record.write_text(given.out / "cifar10.md", results.markdown(found, c=given.c))

    with ending():
        found = conduct(given, Shown(say, watching, _unwatched, keep))
    say(f"\n{results.markdown(found, c=given.c)}")


@contextmanager
def _unwatched() -> Iterator[Progress]:
    yield lambda done, total: None


if __name__ == "__main__":
    main()
