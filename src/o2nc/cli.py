"""The command line: ``o2nc``, one subcommand per experiment.

The core needs torch and numpy only, so typer, rich and matplotlib are imported when a command is run.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import o2nc

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.progress import Progress as RichProgress

SEEDS = 3
LARGEST_SEED = 2**62  # torch takes no larger ones than 2^64
WORKERS = min(os.cpu_count() or 1, 8)


def main() -> None:
    """Run the command line (the entry point of the script ``o2nc``)."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on font caches are not ours to print
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print("The command line needs extra packages: pip install 'o2nc[experiments]'", file=sys.stderr)
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe on Windows cannot encode ‖ḡ‖
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers are told and files are finished
    try:
        code = build_app()(prog_name="o2nc", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        print(f"o2nc: {error}", file=sys.stderr)
        code = 1
    except Exception as error:
        # typer's refusals of arguments: their class has moved between its versions, this method has not
        if not hasattr(error, "format_message"):
            raise
        print(f"o2nc: {error.format_message()}", file=sys.stderr)
        code = 2
    sys.exit(code)


def build_app() -> "typer.Typer":
    """Return the application, made here because its parts need typer."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

    @app.callback(invoke_without_command=True)
    def top(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        """Any online learner as a PyTorch optimizer, with a stationarity certificate.

        Example:  o2nc demo
        """
        if version:
            print(f"o2nc {o2nc.__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())
        else:
            return
        raise typer.Exit

    @app.command()
    def demo(
        out: Annotated[
            Path,
            typer.Option(
                help="Folder for climber.png and climber.json; made if missing.", file_okay=False, writable=True
            ),
        ] = Path("o2nc-demo"),
        seed: Annotated[int, typer.Option(help=f"First of {SEEDS} consecutive seeds.", min=0, max=LARGEST_SEED)] = 0,
        steps: Annotated[int, typer.Option(help="Steps of every run.", min=1)] = 5000,
        quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    ) -> None:
        """Watch momentum walk uphill, and random scaling set it free (about ten seconds).

        Example:  o2nc demo --out pictures --seed 7
        """
        with _interruptible():
            run_demo(_folder(out), range(seed, seed + SEEDS), steps, quiet)

    @app.command()
    def plan(
        gap: Annotated[float, typer.Option(help="F*, at least F(start) − inf F.")],
        lipschitz: Annotated[float, typer.Option(help="G, the largest gradient norm.")],
        noise: Annotated[float, typer.Option(help="σ, root mean square error of a stochastic gradient.")] = 0.0,
        steps: Annotated[int | None, typer.Option(help="N; or give --eps.")] = None,
        eps: Annotated[float | None, typer.Option(help="Target; the least N for it is found.")] = None,
        c: Annotated[float | None, typer.Option("--c", help="Price of spread.")] = None,
        smoothness: Annotated[
            float | None, typer.Option(help="H of a smooth F; chooses c = H²/B, B the bound.")
        ] = None,
        second_order: Annotated[float | None, typer.Option(help="ρ of ∇²F; chooses c = ρ/2.")] = None,
        constants: Annotated[str, typer.Option(help="sharp, paper or both.")] = "both",
    ) -> None:
        """Print the theorem's hyperparameters and what they guarantee.

        Example:  o2nc plan --steps 100000 --c 1 --gap 1 --lipschitz 1 --noise 1
        """
        run_plan(
            steps,
            eps,
            constants,
            c=c,
            gap=gap,
            lipschitz=lipschitz,
            noise=noise,
            smoothness=smoothness,
            second_order=second_order,
        )

    @app.command()
    def verify(
        only: Annotated[
            list[str] | None, typer.Argument(help="Names of checks, or how they begin; all if none.")
        ] = None,
        out: Annotated[
            Path | None, typer.Option(help="Folder for verify.md and verify.json.", file_okay=False)
        ] = None,
        seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0, max=LARGEST_SEED)] = 0,
        workers: Annotated[int, typer.Option(help="Processes.", min=1)] = WORKERS,
        quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    ) -> None:
        """Check every statement of the paper, and every erratum, by running it (a minute or two).

        Exit code 1 if a verdict is wrong.

        Example:  o2nc verify --out results
        """
        with _interruptible():
            if not run_verify(only or [], None if out is None else _folder(out), seed, workers, quiet):
                raise typer.Exit(1)

    @app.command()
    def rates(
        out: Annotated[
            Path, typer.Option(help="Folder for rates.json, rates.png and rates.svg.", file_okay=False)
        ] = Path("o2nc-rates"),
        seed: Annotated[int, typer.Option(help="First of the consecutive seeds.", min=0, max=LARGEST_SEED)] = 0,
        seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 8,
        largest: Annotated[int, typer.Option(help="The longest runs have 2^LARGEST steps.", min=12, max=24)] = 17,
        full: Annotated[bool, typer.Option("--full", help="Go to 2^20 steps, over a million.")] = False,
        workers: Annotated[int, typer.Option(help="Processes.", min=1)] = WORKERS,
        quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    ) -> None:
        """Measure certificates against the number of steps, with bounds; then the traps and the hard chain.

        Exit code 1 if a bound or a rate of a theorem is not respected.

        Example:  o2nc rates --out results --seeds 3
        """
        with _interruptible():
            chosen = range(seed, seed + seeds)
            if not run_rates(_folder(out), chosen, 20 if full else largest, workers, quiet):
                raise typer.Exit(1)

    return app


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and one line."""
    import typer

    try:
        yield
    except KeyboardInterrupt as stop:
        print("o2nc: interrupted", *stop.args, file=sys.stderr)
        raise typer.Exit(130) from None


def _folder(out: Path) -> Path:
    """Make the folder, or refuse by name."""
    import typer

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"cannot make the folder '{out}': {error.strerror}", param_hint="'--out'") from None
    return out


def run_demo(out: Path, seeds: range, steps: int, quiet: bool) -> None:
    """Run the demo, then show and write it; an interrupted one shows and writes the runs that finished."""
    from rich.console import Console

    from o2nc.experiments import demo

    console = Console(quiet=quiet, highlight=False)
    trials = demo.trials(seeds)
    finished: list[demo.Run] = []
    try:
        with _bar(console, quiet) as bar:
            task = bar.add_task(f"{len(trials)} runs of {steps} steps", total=len(trials) * steps)
            for trial in trials:
                finished.append(demo.climb(*trial, steps, lambda made: bar.advance(task, made)))
    except KeyboardInterrupt:
        if not finished:
            raise
    picture, numbers = out / "climber.png", out / "climber.json"
    demo.plot(finished, picture)
    demo.save(finished, seeds, steps, numbers)
    console.print(demo.table(finished))
    console.print(f"\n{demo.summary(finished)}")
    console.print(f"Picture: {picture}   Numbers: {numbers}", markup=False, soft_wrap=True)
    if len(finished) < len(trials):
        raise KeyboardInterrupt(f"after {len(finished)} of {len(trials)} runs, which are kept")


def run_plan(steps: int | None, eps: float | None, constants: str, **known: float | None) -> None:
    """Print the plans for N steps, or for the target ε."""
    import typer
    from rich.console import Console

    from o2nc import theory
    from o2nc.experiments import planning

    console = Console(highlight=False)
    if (steps is None) == (eps is None):
        raise typer.BadParameter("give one of --steps and --eps")
    if sum(known[name] is not None for name in ("c", "smoothness", "second_order")) != 1:
        raise typer.BadParameter("give one of --c, --smoothness and --second-order")
    if constants not in (*theory.CONSTANTS, "both"):
        raise typer.BadParameter(f"must be sharp, paper or both, got {constants!r}", param_hint="'--constants'")
    plans, refusals = [], []
    for version in theory.CONSTANTS if constants == "both" else (constants,):
        try:
            n = steps if eps is None else theory.steps_for(eps, constants=version, **known)  # type: ignore[arg-type]
            plans.append(theory.plan(n, constants=version, **known))  # type: ignore[arg-type]
        except ValueError as error:
            refusals.append(str(error))
        except (OverflowError, ZeroDivisionError):
            refusals.append("these constants are too far apart for floating-point numbers")
    if not plans:
        raise typer.BadParameter(refusals[0])
    console.print(planning.table(plans))
    for p in plans:
        console.print(f"{p.constants}: {planning.code(p)}", markup=False, soft_wrap=True)
    for refusal in refusals:
        console.print(f"\nnot with the paper's constants: {refusal}", markup=False, soft_wrap=True)


def run_verify(only: list[str], out: Path | None, seed: int, workers: int, quiet: bool) -> bool:
    """Make the checks, show and write them; return whether all verdicts are right."""
    import typer

    from o2nc.experiments import pool, record, verify

    console = _console(quiet)
    try:
        selected = verify.select(only)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rows: list[verify.Row] = []
    try:
        with _bar(console, quiet) as bar:
            task = bar.add_task(f"{len(selected)} checks", total=len(selected))
            for row in pool.run(verify.jobs(selected, seed), workers=workers):
                rows.append(row)
                bar.advance(task)
    finally:
        rows = verify.in_order(rows)
        if rows:
            console.print(verify.table(rows, console.width))
        if rows and out is not None:
            record.write_text(out / "verify.md", verify.markdown(rows))
            record.write(out / "verify.json", verify.record(rows, seed, only, complete=len(rows) == len(selected)))
        if len(rows) < len(selected):
            console.print(f"{len(rows)} of {len(selected)} checks made")
    wrong = [row.key for row in rows if not row.verdict]
    console.print(f"{len(rows) - len(wrong)} of {len(rows)} right{': not ' + ', '.join(wrong) if wrong else ''}")
    if wrong and quiet:
        print(f"o2nc: wrong: {', '.join(wrong)}", file=sys.stderr)
    if out is not None:
        console.print(f"Table: {out / 'verify.md'}   Numbers: {out / 'verify.json'}", markup=False, soft_wrap=True)
    return not wrong


def run_rates(out: Path, seeds: range, largest: int, workers: int, quiet: bool) -> bool:
    """Run the studies, the traps and the chain, show and write them; return whether the theorems are respected."""
    from o2nc.experiments import extremes, pool, rates, rates_view, record

    console = _console(quiet)
    lengths = [2**k for k in range(10, largest + 1)]
    curves: list[rates.Curve] = []
    escapes: list[extremes.Escape] = []
    searches: list[extremes.Search] = []
    work = [*rates.jobs(lengths, seeds), *extremes.jobs(seeds)]
    complete = False
    try:
        with _bar(console, quiet) as bar:
            task = bar.add_task("rates, traps, chain", total=rates.steps(lengths) + extremes.steps(seeds))
            for found in pool.run(work, workers=workers, progress=lambda made: bar.advance(task, made)):
                for item in found:
                    kinds = {rates.Curve: curves, extremes.Escape: escapes, extremes.Search: searches}
                    kinds[type(item)].append(item)  # type: ignore[attr-defined]
        complete = True
    finally:
        curves = rates.in_order(curves)
        files = [out / "rates.json"]
        if curves:
            files += rates_view.save(rates_view.figure(curves, complete=complete), out)
            console.print(rates_view.rates_table(curves, console.width))
        if escapes:
            console.print(rates_view.traps_table(escapes, console.width))
        if searches:
            console.print(rates_view.chain_table(searches))
        command = f"o2nc rates --seed {seeds[0]} --seeds {len(seeds)} --largest {largest}"
        record.write(
            files[0],
            {
                "circumstances": record.circumstances(command, seeds=list(seeds), steps=lengths),
                "complete": complete,
                "curves": [rates.as_record(c) for c in curves],
                "traps": [asdict(e) for e in escapes],
                "chain": [asdict(s) for s in searches],
            },
        )
    console.print("Files: " + "  ".join(map(str, files)), markup=False, soft_wrap=True)
    wrong = [f"{c.study}, {c.arm}" for c in curves if not c.agrees]
    wrong += [f"hard chain at eps = {s.eps:g}" for s in searches if not s.agrees]
    if wrong:
        print(f"o2nc: a theorem was not respected: {'; '.join(wrong)}", file=sys.stderr)
    return not wrong


def _console(quiet: bool) -> "Console":
    """Return a console as wide as the terminal, or wide enough for the tables where there is none."""
    from rich.console import Console

    return Console(quiet=quiet, highlight=False, width=None if sys.stdout.isatty() else 118)


def _bar(console: "Console", quiet: bool) -> "RichProgress":
    """Return a progress bar that is shown on terminals only."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    return Progress(*columns, console=console, transient=True, disable=quiet or not sys.stdout.isatty())


if __name__ == "__main__":
    main()
