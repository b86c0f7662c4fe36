"""Tables and the picture of `cifar10.json`: the paper's Table 1 with ours, and accuracy at the horizons."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from o2nc_experiments import kit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {  # mean and standard deviation of 3 trials: train loss, train accuracy, test loss, test accuracy
    "SGD with momentum": ("9.82 ± 0.21", "100.0 ± 0.0", "21.6 ± 0.1", "94.6 ± 0.1"),
    "scaled by Exp(1)": ("9.55 ± 0.37", "100.0 ± 0.0", "22.0 ± 0.4", "94.4 ± 0.2"),
}
HEAD = ["", "train loss ×10⁻⁴", "train acc. %", "test loss ×10⁻²", "test acc. %", "last test acc. %", "x̄ test acc. %"]
NOTE = (
    "train, test: the best of each run's epochs, as in the paper; last: its last epoch's; x̄: after its last epoch, "
    "with BatchNorm's statistics recomputed; mean ± standard deviation (n − 1) over the seeds"
)
Run = Mapping[str, Any]
Groups = dict[str, list[Run]]
Line = dict[int, dict[int, float]]  # by horizon and seed


def longest(runs: Sequence[Run]) -> Groups:
    """Return the runs of greatest length by arm, and by learning rate where an arm has several."""
    found: Groups = {}
    for run in runs:
        same = [other for other in runs if other["arm"] == run["arm"]]
        if run["epochs"] == max(other["epochs"] for other in same):
            lrs = {other["lr"] for other in same if other["epochs"] == run["epochs"]}
            found.setdefault(run["arm"] + (f", lr {run['lr']:g}" if len(lrs) > 1 else ""), []).append(run)
    return found


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the numbers that there are, nan if there are none."""
    return [value for value in values if value is not None] or [math.nan]


def table_1(groups: Groups) -> kit.Table:
    """Return the paper's Table 1 beside ours, with the certificate ‖ḡ‖ + V of the last epoch."""
    rows = []
    for name, runs in groups.items():
        courses = [run["course"] for run in runs]
        best = [
            [scale * choose(finite(course[column])) for course in courses]
            for column, choose, scale in (
                ("train loss", min, 1e4),
                ("train accuracy", max, 1e2),
                ("test loss", min, 1e2),
                ("test accuracy", max, 1e2),
            )
        ]
        last = [
            [100 * finite(course[k][-1:])[0] for course in courses] for k in ("test accuracy", "average accuracy")
        ]
        certificate = [finite(c["gradient"][-1:])[0] + finite(c["spread"][-1:])[0] for c in courses]
        cells = [kit.mean_std(values, 1 if i == 1 else 2) for i, values in enumerate([*best, *last])]
        rows.append([name, *cells, kit.mean_std(certificate, 4), f"{len(runs)} × {runs[0]['epochs']}"])
        if name in PAPER:
            rows.append(["paper", *PAPER[name], "", "", "", "3"])
    return kit.Table([*HEAD, "last ‖ḡ‖ + V", "runs × epochs"], rows, notes=NOTE)


def is_constant(run: Run) -> bool:
    """Return whether a run had no schedule."""
    return run["epochs"] > 1 and len(set(run["course"]["lr"])) == 1


def lines(runs: Sequence[Run], ends: Sequence[int]) -> dict[str, Line]:
    """Return test accuracies at the horizons: x̄ and last iterate of one run, the last iterate of decayed ones."""
    found: dict[str, Line] = {}
    for run in sorted(runs, key=lambda run: not is_constant(run)):
        course = run["course"]
        if is_constant(run):
            for column, what in (("average accuracy", "one run, at x̄"), ("test accuracy", "one run, last iterate")):
                for end in ends:
                    if end <= run["epochs"] and course[column][end - 1] is not None:
                        line = found.setdefault(f"{run['arm']}: {what}", {})
                        line.setdefault(end, {})[run["seed"]] = course[column][end - 1]
        elif run["epochs"] in ends:
            line = found.setdefault(f"{run['arm']}: a run for every length", {})
            line.setdefault(run["epochs"], {})[run["seed"]] = finite(course["test accuracy"][-1:])[0]
    return found


def horizons_table(found: Mapping[str, Line], ends: Sequence[int]) -> kit.Table:
    """Return accuracies by horizon, and the first line less every decayed one, seed by seed."""
    rows = [
        [name, *(kit.mean_std([100 * v for v in line.get(end, {}).values()], 2) for end in ends)]
        for name, line in found.items()
    ]
    first = next(iter(found))
    for name, line in found.items():
        if name.endswith("every length"):
            cells = []
            for end in ends:
                own, other = found[first].get(end, {}), line.get(end, {})
                cells.append(kit.mean_std([100 * (own[seed] - other[seed]) for seed in own if seed in other], 2))
            rows.append([f"x̄ less {name.partition(':')[0]}", *cells])
    return kit.Table(["test accuracy %", *(f"{end} epochs" for end in ends)], rows)


def horizons_figure(found: Mapping[str, Line], ends: Sequence[int]) -> "Figure":
    """Draw test accuracy against epochs: lines are one run, marks are runs that were decayed to end there."""
    figure = kit.new_figure(7.0, 4.6)
    axes = figure.subplots()
    marks = iter("Ds^v")
    for colour, (name, line) in zip(("blue", "grey", "green", "orange", "pink", "sky"), found.items(), strict=False):
        style: dict[str, Any] = {"color": colour, "label": name}
        style |= {"linestyle": "none", "marker": next(marks)} if name.endswith("every length") else {"linewidth": 2.0}
        kit.draw_means(axes, {end: [*own.values()] for end, own in sorted(line.items())}, style)
    kit.horizon_axis(axes, ends)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    kit.style_panel(axes, x="epochs", y="test accuracy")
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def write(out: Path, stored: Mapping[str, Any], about: Mapping[str, Any], ends: Sequence[int]) -> list[kit.Table]:
    """Write cifar10.md and, where matplotlib and jinja2 are installed, the page; return the tables."""
    runs = [run for run in stored.values() if run["course"]]
    groups, found = longest(runs), lines(runs, ends)
    tables = [table_1(groups)]
    compares = any(is_constant(run) for run in runs) and len(ends) > 1
    if compares:
        tables.append(horizons_table(found, ends))
    seconds = fmean(s for run in runs for s in run["course"]["seconds"])
    lead = f"{len(runs)} runs, {seconds:.3g} s per epoch; last command: `{about['command']}` on {about['hardware']}"
    text = "\n\n".join([f"# CIFAR-10 with ResNet-18\n\n{lead}", *(table.markdown() for table in tables)])
    kit.write_text(out / "cifar10.md", f"{text}\n")
    try:
        pictures = []
        if compares:
            pictures = [(horizons_figure({name: line for name, line in found.items() if len(line) > 1}, ends), "")]
            kit.write_bytes(out / "horizons.png", kit.draw(pictures[0][0], "png"))
        sections = [kit.Section("All runs of the folder", pictures=pictures, tables=tables)]
        kit.write_page(out / "report.html", "CIFAR-10 with ResNet-18", lead, sections, about)
    except ImportError:  # matplotlib or jinja2 is not installed
        pass
    return tables
