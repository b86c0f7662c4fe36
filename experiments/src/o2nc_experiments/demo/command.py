"""``o2nc demo``: run with a progress bar, show in the terminal, write record, picture and page; and its article.

The article is for somebody who has not read the paper.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from matplotlib.lines import Line2D

from o2nc_experiments import figures, page, record
from o2nc_experiments.classification import Epoch, by_arm, curves, from_columns, to_columns
from o2nc_experiments.console import make_console, one_thread, print_plain, progress_bar, uninterrupted
from o2nc_experiments.demo import climber, digits
from o2nc_experiments.page import Article, Picture, Section

NAME = "demo.json"
SAYS = "o2nc multiplies every step of an optimizer by one random number, which is 1 on average."
SLOPE = (
    "The slope has teeth, in a shallow valley whose bottom is at 0. Momentum's steps happen to be one tooth long, so "
    "it lands on the gentle side of each, where the ground falls to the left, and goes on to the left. It never sees "
    "the steep sides that it steps over, and they lead up by more than it goes down.\n"
)
MANY = "Every coordinate has its own teeth, and one random number for all of them is enough: "
TRAINING_CAPTIONS = (
    "On the batches as they were seen, logarithmic; {}. Where the lines lie on each other, scaling costs nothing.",
    "On images that were never trained on; the end is drawn again, larger, where there is room. Both begin alike "
    "with every seed, so the difference seed by seed, above, says more than whether the bands overlap.",
)
CERTIFICATE_CAPTIONS = (
    "The length of the averaged gradient. It should fall until only noise is left.",
    "How far the weights lie from their average, squared. It rises while they travel and falls with the learning "
    "rate.",
    "Both together. Falling is what one hopes to see, and no test data are needed to see it.",
    "Hollow: the averaged weights x̄, for which the certificate speaks. They remember the last few epochs; as V "
    "falls, they and the last weights come together.",
)
AVERAGE = Line2D([], [], color=figures.GREY, **curves.HOLLOW, label="averaged weights x̄")


def show(out: Path, seeds: range, steps: int, epochs: int, quiet: bool) -> None:
    """Run the demo, then show and write it; of an interrupted one the runs that finished.

    An interrupted demo never takes the place of a complete one.
    """
    console, data = make_console(quiet), digits.load()
    runs: list[climber.Run] = []
    rows: list[Epoch] = []
    climbers, networks = climber.trials(seeds), digits.trials(seeds)
    begun, stopped = perf_counter(), None
    try:
        with one_thread(), progress_bar(console) as bar:
            task = bar.add_task(f"{len(climbers)} climbers", total=len(climbers) * steps)
            for trial in climbers:
                runs.append(climber.climb(*trial, steps, lambda made: bar.advance(task, made)))
            bar.remove_task(task)
            task = bar.add_task(f"{len(networks)} networks", total=len(networks) * epochs)

            def show_epoch(row: Epoch) -> None:
                found = f"{digits.NAMES[row.arm]}: {100 * row.test_accuracy:.1f} % right"
                bar.update(task, advance=1, description=found)

            for arm, seed in networks:
                rows += digits.train(arm, seed, epochs, data, show_epoch)
    except (KeyboardInterrupt, SystemExit) as stop:  # Ctrl-C, SIGTERM
        if not runs:
            raise
        stopped = stop
    with uninterrupted():
        kept = stopped is not None and complete(out)
        try:
            console.print(climber.table(runs))
            if rows:
                console.print(digits.table(rows))
            summary = f"\n{climber.summary(runs)}\n{digits.summary(rows, len(data.test))}"
            console.print(summary.rstrip(), markup=False)
        finally:  # the terminal may be gone
            if not kept:
                found = {
                    "circumstances": circumstances(seeds, steps, epochs, data),
                    "complete": stopped is None,
                    "seconds": perf_counter() - begun,
                    "climber": {"runs": [asdict(r) | {"certificates": r.certificates} for r in runs]},
                    "digits": to_columns(rows),
                }
                record.write(out / NAME, found)
                figures.save(climber.plot(runs), out, "climber", ["png"])
                print_plain(console, f"Report: {page.write([out / NAME], out / page.NAME)}")
    if stopped is not None:
        finished, wanted = len(runs) + len(rows) // epochs, len(climbers) + len(networks)
        which = f"; the complete results in {out} are kept" if kept else ", which are kept"
        stopped.args += (f"after {finished} of {wanted} runs{which}",)
        raise stopped


def complete(out: Path) -> bool:
    """Say whether there are results of a complete demo."""
    try:
        return json.loads((out / NAME).read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, LookupError, TypeError):
        return False


def circumstances(seeds: range, steps: int, epochs: int, data: digits.Digits) -> dict[str, Any]:
    """Return what is needed to make the results again."""
    knobs = {f"climber_{name.lower()}": getattr(climber, name) for name in ("MOMENTUM", "AVERAGE", "C")}
    names = ("CHANNELS", "BATCH", "LR", "MOMENTUM", "WEIGHT_DECAY", "AVERAGE", "C")
    return record.circumstances(
        f"o2nc demo --seed {seeds[0]} --steps {steps} --epochs {epochs}",
        seeds=list(seeds),
        climber_steps=steps,
        **knobs,
        digits_epochs=epochs,
        digits_train=len(data.train),
        digits_test=len(data.test),
        **{f"digits_{name.lower()}": getattr(digits, name) for name in names},
    )


def article(found: dict[str, Any]) -> Article:
    """Return the article of `demo.json`."""
    runs = [record.revive(climber.Run, run) for run in found["climber"]["runs"]]
    rows, about = from_columns(found["digits"]), found["circumstances"]
    sections = [*climbing(runs), *(training(rows, about) if rows else ()), one_line(about)]
    took = f"Computing it took {found['seconds']:.0f} s, without a GPU."
    summary = "\n".join([SAYS, *findings(runs, rows, about["digits_test"]), took])
    return Article("One random number per step", summary, sections)


def findings(runs: Sequence[climber.Run], rows: Sequence[Epoch], images: int) -> list[str]:
    """Return what came out, in a line each: the slope, the digits and the certificate, as far as they are there."""
    found = [f"• A slope that was built to need it, its height F to be made small: {value(runs, 1)}."]
    if paired := digits.paired(rows):
        found += [
            "• A network on real handwriting: seed by seed, it changes test accuracy by "
            f"{digits.difference(paired)}; one image is {100 / images:.2f}.",
            "• The certificate, a number that says how close to stationary the averaged weights are: "
            f"{digits.course(paired)}.",
        ]
    return found


def value(runs: Sequence[climber.Run], dimension: int) -> str:
    """Return what becomes of F in this dimension, without scaling and with it as soon as there is such a run."""
    own = [r for r in runs if r.dimension == dimension]
    scaled = f", and ends at {ends} with it" if (ends := climber.ends(own)) else ""
    return f"F goes {climber.changes(own)} without it{scaled}"


def climbing(runs: Sequence[climber.Run]) -> list[Section]:
    """Return the climber: in one dimension, and in others in brief."""
    one, *others = ([r for r in runs if r.dimension == d] for d in sorted({r.dimension for r in runs}))
    found = [
        Section(
            "Momentum can walk uphill",
            SLOPE + climber.summary(one),
            pictures=[
                Picture(
                    "Where the first steps land",
                    f"The slope, and the first {len(one[0].path) - 1} steps on it. Without scaling: the same place "
                    "on every tooth, each higher than the last, and on to the left. With scaling (one seed is "
                    "shown): anywhere.",
                    partial(climber.draw_path, runs=one),
                ),
                *over_steps(
                    one,
                    "Up is worse. Without scaling it rises by the same amount in every step. With scaling it stays "
                    "low: it cannot come nearer to the bottom than its steps are long.",
                    "How far from stationary, at most; logarithmic. It tells the two apart without looking at F: the "
                    "climber's never falls.",
                ),
            ],
            legend=climber.legend(one),
            tables=[climber.table(one)],
        )
    ]
    for own in others:
        d = own[0].dimension
        shown = over_steps(own, "Up is worse.", "Up is worse; logarithmic.")
        title = f"The same in {d} dimensions"
        found.append(Section(title, f"{MANY}{value(own, d)}.", pictures=shown, legend=climber.legend(own)))
    return found


def over_steps(runs: Sequence[climber.Run], values: str, certificates: str) -> list[Picture]:
    """Return F and the certificate over the steps, with what is said of each."""
    bound = f"The certificate ‖ḡ‖ + cV, c = {climber.C:g}"
    return [
        Picture("The value F, step by step", values, partial(climber.draw_values, runs=runs)),
        Picture(bound, certificates, partial(climber.draw_certificates, runs=runs)),
    ]


def training(rows: Sequence[Epoch], about: dict[str, Any]) -> list[Section]:
    """Return the digits: losses, accuracies and the table; then what the averages say."""
    by_name = by_arm(digits.named(rows))
    # blue is scaled and red is not, as with the climber
    arms = {name: by_name.get(name, []) for name in reversed(digits.NAMES.values())}
    captions = [caption.format(curves.over_trials(arms)) for caption in TRAINING_CAPTIONS]
    furthest = math.sqrt(max(row.spread for row in rows if row.spread is not None))
    compared, certified = (*digits.summary(rows, about["digits_test"]).splitlines(), "", "")[:2]
    return [
        Section(
            "A network with kinks, on real handwriting",
            f"{about['digits_train']} images of 8×8 pixels to learn from, {about['digits_test']} others to be tested "
            "on (scikit-learn's digits). Two convolutions with ReLU and max-pooling: functions with kinks, to which "
            "the usual theory of SGD with momentum (SGDM) does not apply. Scaled SGDM is the same with one random "
            "number per step; both begin with the same weights and see the same batches of "
            f"{about['digits_batch']}, with lr {about['digits_lr']:g} that falls along a cosine, momentum "
            f"{about['digits_momentum']:g} and weight decay {about['digits_weight_decay']:g}.\n{compared}\n"
            "Better accuracy is not promised: random scaling is what a theory for functions with kinks needs.",
            pictures=curves.pictures(curves.FIGURE[::2], captions, arms),
            legend=curves.legend(arms),
            tables=[digits.table(rows)],
        ),
        Section(
            "The certificate that comes with the weights",
            "While it trains, the optimizer keeps the average x̄ of its weights, the average ḡ of its gradients, and "
            "the spread V of the weights around x̄. From these, without evaluating anything, ‖ḡ‖ + cV bounds how far "
            f"x̄ is from stationary, up to the noise of the batches.\n{certified}\n"
            f"c is the price of distance, and is chosen to suit the lengths at hand: {digits.C:g} here, where the "
            f"weights lie up to {furthest:.2g} from their average, and {climber.C:g} on the slope, where a single "
            "step is about 1 long. So compare a certificate with its own first epoch, not with 0 and not with one of "
            "another c.",
            pictures=curves.pictures(curves.certificate_panels(digits.C), CERTIFICATE_CAPTIONS, arms),
            legend=[*curves.legend(arms), AVERAGE],
        ),
    ]


def one_line(about: dict[str, Any]) -> Section:
    """Return what to change in one's own code."""
    numbers = f"lr={about['digits_lr']:g}, momentum={about['digits_momentum']:g}"
    numbers += f", weight_decay={about['digits_weight_decay']:g}"
    return Section(
        "Change one line",
        "In your own training only the optimizer changes. All arguments of torch.optim.SGD keep their meaning, and "
        "the learning rate carries over. average turns the averages and the certificate on.",
        code=(
            "import o2nc\n"
            "\n"
            f"# opt = torch.optim.SGD(model.parameters(), {numbers})\n"
            f"opt = o2nc.ScaledSGDM(model.parameters(), {numbers}, average={about['digits_average']:g})\n"
            "\n"
            "# … train as before …\n"
            "\n"
            f"print(opt.certificate(c={about['digits_c']:g}))\n"
            "with opt.averaged():  # the weights are x̄ in here\n"
            "    ...  # evaluate\n"
        ),
    )
