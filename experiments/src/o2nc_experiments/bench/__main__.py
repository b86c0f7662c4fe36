"""The same as ``o2nc bench`` where only torch is installed: prints Markdown."""

import argparse
import signal
import sys
from pathlib import Path

from o2nc_experiments import bench
from o2nc_experiments.bench.contenders import MODELS
from o2nc_experiments.bench.view import markdown
from o2nc_experiments.cli import ROUNDS


def main() -> None:
    """Measure, print the tables, write them if asked to."""
    parser = argparse.ArgumentParser(prog="python -m o2nc_experiments.bench", description=bench.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = list(MODELS)
    parser.add_argument("--model", dest="models", action="append", default=[], choices=names, help="may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed steps of every contender")
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument("--training", action="store_true", help="time training steps as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for bench.json and bench.md")
    given = vars(parser.parse_args())
    out: Path | None = given.pop("out")
    if given["rounds"] < 1 or given["seed"] < 0:
        parser.error("--rounds must be at least 1 and --seed at least 0")
    try:
        benchmark = bench.plan(**given)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    code = 0
    try:
        bench.run(benchmark)
    except KeyboardInterrupt:
        code = 130
    finally:  # what was finished is kept
        print(markdown(benchmark.rows, benchmark.trained, benchmark.circumstances))
        if out is not None:
            bench.save(benchmark, out)
        for line in [*benchmark.left_out, *benchmark.failed]:
            print(line, file=sys.stderr)
    sys.exit(code or bool(benchmark.failed))


if __name__ == "__main__":
    main()
