"""``o2nc rates``: run the studies, the guarantees, the traps and the chain, show them, write them down."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from o2nc_experiments import figures, page, pool, record
from o2nc_experiments.console import make_console, print_error, print_files, progress_bar
from o2nc_experiments.pool import Progress
from o2nc_experiments.rates import article, curves, guarantees, hard_chain, tables, traps
from o2nc_experiments.rates.curves import Curve
from o2nc_experiments.rates.guarantees import Guarantee
from o2nc_experiments.rates.hard_chain import ChainSearch
from o2nc_experiments.rates.traps import Escape


def show(out: Path, seeds: range, largest: int, workers: int, quiet: bool) -> bool:
    """Run everything, show and write it; return whether the theorems are respected."""
    console = make_console(quiet)
    lengths = [2**k for k in range(10, largest + 1)]
    work: list[Callable[[Progress], Sequence[Curve | Escape | ChainSearch | Guarantee]]]
    work = [*curves.jobs(lengths, seeds), *guarantees.jobs(seeds), *hard_chain.jobs(seeds[0]), *traps.jobs(seeds)]
    total = curves.steps(lengths) + guarantees.steps() + hard_chain.steps() + traps.steps(seeds)
    found: list[Curve | Escape | ChainSearch | Guarantee] = []
    complete = False
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("rates, guarantees, traps, chain", total=total)
            for part in pool.run(work, workers=workers, progress=lambda made: bar.advance(task, made)):
                found += part
        complete = True
    finally:
        drawn = curves.in_order([item for item in found if isinstance(item, Curve)])
        escapes = [item for item in found if isinstance(item, Escape)]
        searches = [item for item in found if isinstance(item, ChainSearch)]
        promises = guarantees.in_order([item for item in found if isinstance(item, Guarantee)])
        files = [out / "rates.json"]
        command = f"o2nc rates --seed {seeds[0]} --seeds {len(seeds)} --largest {largest}"
        record.write(
            files[0],
            {
                "circumstances": record.circumstances(command, seeds=list(seeds), steps=lengths),
                "complete": complete,
                "curves": [curves.as_record(curve) for curve in drawn],
                "guarantees": [asdict(promise) for promise in promises],
                "traps": [asdict(escape) for escape in escapes],
                "chain": [asdict(search) for search in searches],
            },
        )
        if drawn:
            files += figures.save(article.figure(drawn, complete=complete), out, "rates")
        files.append(page.write([out]))
        if drawn:
            console.print(tables.rates_table(drawn, console.width))
        if promises:
            console.print(tables.guarantees_table(promises))
        if escapes:
            console.print(tables.traps_table(escapes, console.width))
        if searches:
            console.print(tables.chain_table(searches))
    print_files(console, files)
    wrong = [f"{curve.study}, {curve.arm}" for curve in drawn if not curve.agrees]
    wrong += [f"hard chain at eps = {search.eps:g}" for search in searches if not search.agrees]
    wrong += [f"{p.case}, {p.steps} steps, {p.arm}" for p in promises if not p.agrees]
    if wrong:
        print_error(f"a theorem was not respected: {'; '.join(wrong)}")
    return not wrong
