"""What the commands do: run an experiment with a progress bar, show it, write it down."""

from dataclasses import asdict
from pathlib import Path

import typer

from o2nc import theory
from o2nc_experiments import extremes, page, planning, pool, rates, rates_view, record, verify
from o2nc_experiments.console import make_console, print_error, print_files, print_plain, progress_bar


def show_plan(steps: int | None, eps: float | None, constants: str, **known: float | None) -> None:
    """Print the plans for N steps, or for the target ε."""
    console = make_console(quiet=False)
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
        print_plain(console, f"{p.constants}: {planning.code(p)}")
    for refusal in refusals:
        print_plain(console, f"\nnot with the paper's constants: {refusal}")


def show_verify(only: list[str], out: Path | None, seed: int, workers: int, quiet: bool) -> bool:
    """Make the checks, show and write them; return whether all verdicts are right."""
    console = make_console(quiet)
    try:
        selected = verify.select(only)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rows: list[verify.Row] = []
    try:
        with progress_bar(console) as bar:
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
            page.write([out])
        if len(rows) < len(selected):
            console.print(f"{len(rows)} of {len(selected)} checks made")
    wrong = [row.key for row in rows if not row.verdict]
    console.print(f"{len(rows) - len(wrong)} of {len(rows)} right{': not ' + ', '.join(wrong) if wrong else ''}")
    if wrong and quiet:
        print_error(f"wrong: {', '.join(wrong)}")
    if out is not None:
        print_files(console, [out / name for name in ("verify.json", "verify.md", page.NAME)])
    return not wrong


def show_rates(out: Path, seeds: range, largest: int, workers: int, quiet: bool) -> bool:
    """Run the studies, the traps and the chain, show and write them; return whether the theorems are respected."""
    console = make_console(quiet)
    lengths = [2**k for k in range(10, largest + 1)]
    curves: list[rates.Curve] = []
    escapes: list[extremes.Escape] = []
    searches: list[extremes.Search] = []
    work = [*rates.jobs(lengths, seeds), *extremes.jobs(seeds)]
    complete = False
    try:
        with progress_bar(console) as bar:
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
        files.append(page.write([out]))
        if curves:
            console.print(rates_view.rates_table(curves, console.width))
        if escapes:
            console.print(rates_view.traps_table(escapes, console.width))
        if searches:
            console.print(rates_view.chain_table(searches))
    print_files(console, files)
    wrong = [f"{c.study}, {c.arm}" for c in curves if not c.agrees]
    wrong += [f"hard chain at eps = {s.eps:g}" for s in searches if not s.agrees]
    if wrong:
        print_error(f"a theorem was not respected: {'; '.join(wrong)}")
    return not wrong
