"""What the commands do: run an experiment with a progress bar, show it, write it down."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from o2nc import theory
from o2nc_experiments import bench, extremes, planning, pool, rates, rates_view, record, report, verify


def show_plan(steps: int | None, eps: float | None, constants: str, **known: float | None) -> None:
    """Print the plans for N steps, or for the target ε."""
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


def show_verify(only: list[str], out: Path | None, seed: int, workers: int, quiet: bool) -> bool:
    """Make the checks, show and write them; return whether all verdicts are right."""
    console = console_for(quiet)
    try:
        selected = verify.select(only)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rows: list[verify.Row] = []
    try:
        with bar_on(console, quiet) as bar:
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
            report.write([out])
        if len(rows) < len(selected):
            console.print(f"{len(rows)} of {len(selected)} checks made")
    wrong = [row.key for row in rows if not row.verdict]
    console.print(f"{len(rows) - len(wrong)} of {len(rows)} right{': not ' + ', '.join(wrong) if wrong else ''}")
    if wrong and quiet:
        print(f"o2nc: wrong: {', '.join(wrong)}", file=sys.stderr)
    if out is not None:
        say_files(console, [out / name for name in ("verify.json", "verify.md", report.NAME)])
    return not wrong


def show_rates(out: Path, seeds: range, largest: int, workers: int, quiet: bool) -> bool:
    """Run the studies, the traps and the chain, show and write them; return whether the theorems are respected."""
    console = console_for(quiet)
    lengths = [2**k for k in range(10, largest + 1)]
    curves: list[rates.Curve] = []
    escapes: list[extremes.Escape] = []
    searches: list[extremes.Search] = []
    work = [*rates.jobs(lengths, seeds), *extremes.jobs(seeds)]
    complete = False
    try:
        with bar_on(console, quiet) as bar:
            task = bar.add_task("rates, traps, chain", total=rates.steps(lengths) + extremes.steps(seeds))
            for found in pool.run(work, workers=workers, progress=lambda made: bar.advance(task, made)):
                for item in found:
                    kinds = {rates.Curve: curves, extremes.Escape: escapes, extremes.Search: searches}
                    kinds[type(item)].append(item)  # type: ignore[attr-defined]
        complete = True
    finally:
        curves = rates.in_order(curves)
        files = [out / "rates.json"]
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
        if curves:
            files += rates_view.save(rates_view.figure(curves, complete=complete), out)
        files.append(report.write([out]))
        if curves:
            console.print(rates_view.rates_table(curves, console.width))
        if escapes:
            console.print(rates_view.traps_table(escapes, console.width))
        if searches:
            console.print(rates_view.chain_table(searches))
    say_files(console, files)
    wrong = [f"{c.study}, {c.arm}" for c in curves if not c.agrees]
    wrong += [f"hard chain at eps = {s.eps:g}" for s in searches if not s.agrees]
    if wrong:
        print(f"o2nc: a theorem was not respected: {'; '.join(wrong)}", file=sys.stderr)
    return not wrong


def plan_bench(models: list[str], rounds: int, device: str | None, training: bool, seed: int) -> bench.Report:
    """Return what is to be measured, or refuse it."""
    try:
        return bench.plan(models, rounds=rounds, device=device, training=training, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def show_bench(plan: bench.Report, out: Path | None, quiet: bool) -> bool:
    """Measure what was planned, show and write it; return whether no contender failed."""
    console = console_for(quiet)
    for refusal in plan.left_out:
        console.print(f"left out: {refusal}", markup=False, soft_wrap=True)
    try:
        with bar_on(console, quiet) as bar:
            task = bar.add_task(", ".join(plan.models), total=plan.total)
            bench.run(plan, lambda made: bar.advance(task, made))
    finally:
        if plan.rows or plan.trained:
            console.print(bench.heading(bench.circumstances(plan)), markup=False, soft_wrap=True)
            for grid in bench.grids(plan.rows, plan.trained):
                console.print(grid)
            if out is not None:
                say_files(console, [*bench.save(plan, out), report.write([out])])
        if not plan.complete:
            made, asked = len(plan.rows) + len(plan.trained), plan.total // plan.rounds
            console.print(f"{made} of {asked} rows made")
    for failure in plan.failed:
        print(f"o2nc: failed: {failure}", file=sys.stderr)
    return not plan.failed


def show_report(places: list[Path], out: Path | None, quiet: bool) -> None:
    """Write the report of what is in these folders, and say where it is."""
    console_for(quiet).print(f"Report: {report.write(places, out)}", markup=False, soft_wrap=True)


def say_files(console: Console, files: Sequence[Path]) -> None:
    """Print where results are, so that they can be copied."""
    console.print("Files: " + "  ".join(map(str, files)), markup=False, soft_wrap=True)


def console_for(quiet: bool) -> Console:
    """Return a console as wide as the terminal, or wide enough for the tables where there is none."""
    return Console(quiet=quiet, highlight=False, width=None if on_terminal() else 118)


def on_terminal() -> bool:
    """Say whether what is printed is seen on a terminal; it may not be open at all."""
    return sys.stdout is not None and sys.stdout.isatty()


def bar_on(console: Console, quiet: bool) -> Progress:
    """Return a progress bar that is shown on terminals only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    return Progress(*columns, console=console, transient=True, disable=quiet or not on_terminal())
