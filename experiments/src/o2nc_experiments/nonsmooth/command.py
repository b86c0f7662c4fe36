"""``o2nc nonsmooth``: tune and measure all arms on all objectives, count the traps, show and write it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from o2nc_experiments import figures, page, pool, record
from o2nc_experiments.console import make_console, print_files, progress_bar
from o2nc_experiments.nonsmooth import escapes, study, tables, view
from o2nc_experiments.nonsmooth.arms import DECAYED, FREE, OTHERS, RANDOM, REFERENCE
from o2nc_experiments.nonsmooth.escapes import Escape, Freedom
from o2nc_experiments.nonsmooth.objectives import OBJECTIVES
from o2nc_experiments.nonsmooth.study import Plan, Result
from o2nc_experiments.pool import Progress
from o2nc_experiments.tables import Table


@dataclass(frozen=True)
class Options:
    """What is measured."""

    horizons: tuple[int, ...] = (500, 2000, 4000)
    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    tuning: int = 8  # seeds to choose learning rates on
    seeds: int = 10
    others: bool = False  # other optimizers, instead of SGDM and all else

    def plans(self, seed: int) -> list[Plan]:
        """Return what is run: laws differ by little and get all seeds, but not the longest horizon; the rest half."""
        *short, longest = self.horizons
        tuning = range(seed + TUNING, seed + TUNING + self.tuning)
        seeds = range(seed, seed + self.seeds)
        if self.others:
            return [Plan([REFERENCE, *OTHERS], [horizon], tuning, seeds) for horizon in short]
        baselines = [REFERENCE, *(arm for arm in RANDOM if arm.name == "Nesterov"), *DECAYED]
        few = tuning[: -(-self.tuning // 2)], seeds[: -(-self.seeds // 2)]
        laws = [Plan([*RANDOM, *DECAYED], [horizon], tuning, seeds) for horizon in short]
        return [Plan(FREE, self.horizons, *few), Plan(baselines, [longest], *few), *laws]


QUICK = Options((100, 200, 400), tuple(OBJECTIVES)[2:6:3], 2, 2)
TUNING = 1000  # the first of the seeds to tune on, counted from the first seed


def show(out: Path, seed: int, seeds: int, workers: int, quick: bool, others: bool, quiet: bool) -> None:
    """Run everything, show and write it."""
    console = make_console(quiet)
    options = replace(QUICK if quick else Options(seeds=seeds), others=others)
    plans = options.plans(seed)
    work: list[Callable[[Progress], Sequence[Result | Escape | Freedom]]] = [
        *study.jobs(options.objectives, plans),
        *escapes.counts(plans[-1].arms if others else RANDOM, quick),
        *([] if others else escapes.freedoms(quick)),
    ]
    found: list[Result | Escape | Freedom] = []
    with progress_bar(console) as bar:
        task = bar.add_task("non-smooth problems, traps", total=len(work))
        for part in pool.run(work, workers=workers, progress=lambda made: bar.advance(task, made)):
            found += part
    command = f"o2nc nonsmooth --seed {seed} --seeds {seeds}" + " --quick" * quick + " --others" * others
    written = {
        "circumstances": record.circumstances(
            command, seeds=[*plans[-1].seeds], tuning_seeds=[*plans[-1].tuning_seeds]
        ),
        "columns": ["objective", "arm", "horizon", "tuned for", "lr", "F by seed", "certificate by seed"],
        "rows": [_short(list(asdict(r).values())) for r in _in_order(found, options)],
        "escapes": [{k: record.plain(v) for k, v in asdict(e).items()} for e in found if isinstance(e, Escape)],
        "freedoms": [{k: record.plain(v) for k, v in asdict(f).items()} for f in found if isinstance(f, Freedom)],
    }
    record.write(out / "nonsmooth.json", written)
    results, trapped, freed = view.load(written)
    measured = [tables.optimizers] if others else [tables.costs, tables.horizons]
    shown = [*(make(results) for make in measured), tables.traps(trapped)]
    for table in shown:
        console.print(table)
    details = [tables.by_objective(results, horizon) for horizon in results.horizons]
    text = "\n\n".join(_markdown(table) for table in [*shown, *details])
    record.write_text(out / "nonsmooth.md", f"# Non-smooth problems: the record\n\n`{command}`\n\n{text}\n")
    files = [out / "nonsmooth.json", out / "nonsmooth.md"]
    if not others:
        files += figures.save(view.law_figure(results, freed), out, "nonsmooth_laws")
        files += figures.save(view.horizon_figure(results), out, "nonsmooth_horizons")
    print_files(console, [*files, page.write([out / "nonsmooth.json"], out / page.NAME)])


def _short(values: list[Any]) -> list[Any]:
    """Return what JSON can say, numbers in four digits."""
    return record.plain(
        [[float(f"{v:.4g}") for v in value] if isinstance(value, list) else value for value in values]
    )


def _in_order(found: Sequence[Result | Escape | Freedom], options: Options) -> list[Result]:
    results = [item for item in found if isinstance(item, Result)]
    return sorted(results, key=lambda r: options.objectives.index(r.objective))


def _markdown(table: Table) -> str:
    return "\n\n".join([table.markdown(), *([" ".join(table.notes)] if table.notes else [])])
