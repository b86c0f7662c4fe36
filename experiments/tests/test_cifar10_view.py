"""`o2nc cifar10`'s tables and pictures: the right figures in the right places, of whole, short and diverged runs."""

import math
from io import StringIO

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from o2nc_experiments import classification, figures
from o2nc_experiments.cifar10 import results, study
from o2nc_experiments.classification import Epoch, curves, to_columns

NAN = math.nan
SIX = ["sgdm", "sgdm+exponential", "adamw", "adagrad+uniform", "lion", "ogd"]


def make(arm="sgdm", seed=0, epoch=1, **changes):
    row = Epoch(arm, seed, epoch, 0.01, 0.5, 0.8, 0.6, 0.7, None, None, None, None, None, 2.0)
    return row._replace(**changes)


def trial(arm, seed, accuracies, averages=False):
    """Rows with these test accuracies, and everything else a function of them."""
    rows = []
    for epoch, a in enumerate(accuracies, 1):
        row = make(arm, seed, epoch, train_loss=1 - a, train_accuracy=a, test_loss=2 - a, test_accuracy=a)
        if averages:
            row = row._replace(gradient=1 / epoch, spread=0.1 * (seed + 1) / epoch, average_accuracy=a + 0.01)
        rows.append(row)
    return rows


def rising(arms, seeds, epochs):
    rng = np.random.default_rng(0)
    values = 0.95 - 0.5 * np.exp(-np.arange(1, epochs + 1) / 4)
    return [
        row
        for arm in arms
        for seed in range(seeds)
        for row in trial(arm, seed, values + 0.002 * rng.standard_normal(epochs), averages="+" in arm)
    ]


def shown(rows, width, **more):
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(results.table(rows, **more))
    return console.file.getvalue()


def record(rows, complete=True, **changes):
    seeds = {(row.arm, row.seed): row for row in rows}
    trials = [{"arm": a, "seed": s, "epochs": 2, "complete": complete or not s} for a, s in seeds]
    about = {"command": "o2nc cifar10 --epochs 2", "hardware": "Abacus 9", "device": "cpu", "processors": 4}
    about |= {"o2nc": "1.2.3", "torch": "9.8", "python": "3.99"}
    whole = {
        "circumstances": about,
        "settings": {"lr": 0.01, "limit": None, "batch": 128},
        "complete": complete,
        "seconds": 3723.4,
    }
    return {**whole, "trials": trials, **to_columns(rows), **changes}


def drawn(axes):
    """The lines, without what belongs to the axes."""
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata(), float)) for line in axes.get_lines()]


# --- best and last


def test_the_best_of_each_trial_is_averaged_over_the_trials():
    rows = [
        make(seed=0, epoch=1, train_loss=0.3, train_accuracy=0.6, test_loss=0.2, test_accuracy=0.9),
        make(seed=0, epoch=2, train_loss=0.1, train_accuracy=0.7, test_loss=0.4, test_accuracy=0.8),
        make(seed=1, epoch=1, train_loss=0.2, train_accuracy=0.9, test_loss=0.7, test_accuracy=0.5),
        make(seed=1, epoch=2, train_loss=0.5, train_accuracy=0.4, test_loss=0.8, test_accuracy=0.6),
        make(seed=7, epoch=1, train_loss=0.6, train_accuracy=0.5, test_loss=0.3, test_accuracy=0.7),
    ]
    found = classification.best(rows)["sgdm"]
    by_hand = {
        "train_loss": [0.1, 0.2, 0.6],
        "train_accuracy": [0.7, 0.9, 0.5],
        "test_loss": [0.2, 0.7, 0.3],
        "test_accuracy": [0.9, 0.6, 0.7],
    }
    for name, values in by_hand.items():
        mean = sum(values) / 3
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
        assert getattr(found, name) == pytest.approx((mean, deviation), rel=1e-12)


def test_arms_stay_apart_and_in_order_whatever_the_order_of_rows():
    rows = trial("b", 0, [0.5, 0.75]) + trial("a", 0, [0.25]) + trial("b", 1, [0.25, 0.5])
    assert list(classification.best(rows)) == ["b", "a"]
    assert classification.best(rows)["a"].test_accuracy == (0.25, None)
    assert classification.last(rows[::-1])["b"].test_accuracy == pytest.approx((0.625, np.std([0.75, 0.5], ddof=1)))


def test_one_trial_has_no_deviation():
    assert all(mean.deviation is None for mean in classification.best([make()])["sgdm"])
    assert "±" not in shown([make(arm="adamw")], 80).replace(" ", "").split("mean±")[0]


@pytest.mark.parametrize("bad", [NAN, None])
def test_what_is_not_a_number_is_never_the_best(bad):
    rows = [make(epoch=e, train_loss=v, test_loss=v) for e, v in ((1, bad), (2, 0.3), (3, bad))]
    assert classification.best(rows)["sgdm"].train_loss == (0.3, None)
    assert classification.best(rows)["sgdm"].test_loss == (0.3, None)


@pytest.mark.parametrize("bad", [NAN, None])
def test_a_trial_that_was_never_finite_is_not_hidden(bad):
    rows = [make(arm="x", seed=0), make(arm="x", seed=1, train_loss=bad)]
    assert math.isnan(classification.best(rows)["x"].train_loss.value)
    assert classification.best(rows)["x"].test_loss == (0.6, 0.0)
    assert shown(rows, 80).splitlines()[4].split()[:2] == ["x", "nan"]


def test_an_infinite_loss_is_worse_than_any_other():
    assert classification.best([make(test_loss=math.inf), make(epoch=2)])["sgdm"].test_loss.value == 0.6
    both = [make(arm="x", seed=s, train_loss=math.inf) for s in (0, 1)]
    assert shown(both, 80).splitlines()[4].split()[:2] == ["x", "inf"]


def test_last_takes_the_last_epoch_the_last_average_and_the_given_price():
    rows = [
        make(epoch=3, test_accuracy=0.8, gradient=0.3, spread=0.01),
        make(epoch=2, test_accuracy=0.9, gradient=0.2, spread=0.02, average_accuracy=0.85),
        make(epoch=1, test_accuracy=0.7, gradient=0.1, spread=0.03, average_accuracy=0.95),
    ]
    found = classification.last(rows, c=10)["sgdm"]
    assert found.test_accuracy == (0.8, None)
    assert found.average_accuracy == (0.85, None)
    assert found.certificate == pytest.approx((0.4, None))
    assert classification.last(rows)["sgdm"].certificate.value == pytest.approx(0.31)
    assert classification.last([make()])["sgdm"][1:] == (None, None)


@pytest.mark.parametrize("lost", [NAN, None])
def test_averages_not_measured_yet_are_not_counted_but_lost_certificates_are(lost):
    rows = [make(seed=s, epoch=e, gradient=0.5, spread=0.0) for s in (0, 1) for e in (1, 2)]
    rows[0] = rows[0]._replace(average_accuracy=0.75)
    assert classification.last(rows)["sgdm"].average_accuracy == (0.75, None)
    assert classification.last(rows)["sgdm"].certificate == (0.5, 0.0)
    rows[2:] = [row._replace(gradient=lost) for row in rows[2:]]
    assert math.isnan(classification.last(rows)["sgdm"].certificate.value)


# --- tables


def test_the_papers_figures_are_those_of_its_table_1():
    text = shown([make(), make("sgdm+exponential")], 80)
    printed = [line.split("paper")[1].split("  ") for line in text.splitlines() if line.startswith("   paper")]
    assert [[cell.strip() for cell in cells if cell.strip()] for cells in printed] == [
        ["9.82 ± 0.21", "100.0 ± 0.0", "21.6 ± 0.1", "94.6 ± 0.1"],
        ["9.55 ± 0.37", "100.0 ± 0.0", "22.0 ± 0.4", "94.4 ± 0.2"],
    ]


def test_measured_figures_have_the_papers_units():
    both = {"train_loss": (9.5e-4, 9.7e-4), "train_accuracy": (1.0, 1.0), "test_loss": (0.21, 0.22)}
    both |= {"test_accuracy": (0.9461, 0.9439), "gradient": (0.031, 0.033), "spread": (0.004, 0.004)}
    both |= {"average_accuracy": (0.951, 0.953)}
    rows = [make("sgdm", s, **{name: values[s] for name, values in both.items()}) for s in (0, 1)]
    lines = [" ".join(line.split()) for line in shown(rows, 80, c=2).splitlines()]
    assert "sgdm 9.60 ± 0.14 100.0 ± 0.0 21.50 ± 0.71 94.50 ± 0.16" in lines
    assert "sgdm 94.50 ± 0.16 95.20 ± 0.14 0.0400 ± 0.0014 2 × 1" in lines
    assert "arm test acc. % test acc. % ‖ḡ‖ + 2V epochs" in lines


def test_large_and_missing_figures():
    rows = [make(arm="x", train_loss=2.30259), make(arm="x", epoch=2, train_loss=2.4)]
    lines = [" ".join(line.split()) for line in shown(rows, 80).splitlines()]
    assert "x 23026 80.0 60.00 70.00" in lines
    assert "x 70.00 – – 1 × 2" in lines
    assert "x 5000 0.0 60.00 0.00" in " ".join(shown([make("x", train_accuracy=0.0, test_accuracy=0.0)], 80).split())


@pytest.mark.parametrize("width", [80, 118])
@pytest.mark.parametrize("arms", [SIX[:2], SIX])
def test_nothing_is_cut_off(arms, width):
    rows = rising(arms, seeds=3, epochs=200)
    text = shown(rows, width)
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= width
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert [line.split()[0] for line in lines if line.endswith("3 × 200")] == arms
    for arm, means in classification.best(rows).items():
        value, deviation = (100 * number for number in means.test_accuracy)
        assert any(x.startswith(arm + " ") and x.endswith(f"{value:.2f} ± {deviation:.2f}") for x in lines)
    assert sum(line.startswith("paper ") for line in lines) == 2


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 70])
def test_where_there_is_no_room_no_number_is_cut(width):
    rows = rising(SIX[:2], seeds=3, epochs=200)
    text = shown(rows, width)
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= width
    joined = " ".join(text.split())
    for arm, means in classification.best(rows).items():
        assert arm in joined
        assert classification.written(means.test_accuracy, 1e2) in joined
    assert "9.55 ± 0.37" in joined
    if width < 60:
        assert f"{SIX[0]} train loss ×10⁻⁴: " in joined  # a list, arm by arm
    assert "paper: its Table 1" in joined


def test_huge_numbers_have_a_power_of_ten():
    assert classification.written(classification.Mean(1.234e12, 5.6e11), decimals=6, digits=3) == "1.2e+12 ± 5.6e+11"
    assert classification.written(classification.Mean(123456.0)) == "123456"
    assert classification.written(classification.Mean(1e305, 0.0), 1e4) == "inf"
    rows = [make("x+", s, gradient=1e300, spread=8e307) for s in (0, 1)]
    assert "8.0e+307 ± " in shown(rows, 80)


def test_the_note_says_what_is_not_the_papers():
    assert (
        results.note({}) == results.note({"epochs": 200, "width": 64, "limit": None, "average": 0.9}) == results.NOTE
    )
    other = "not in this setting (epochs 2, width 8, limit 2000)"
    assert results.note({"limit": 2000, "epochs": 2, "batch": 128, "width": 8}).endswith(f"3 trials, {other}")
    text = results.markdown(record([make()], settings={"epochs": 2, "width": 8, "limit": 2000}))
    assert other in text


def test_a_long_name_is_folded():
    name = "-".join(SIX)
    rows = rising([name], seeds=3, epochs=200)
    text = shown(rows, 80)
    assert "…" not in text
    value, deviation = (100 * number for number in classification.best(rows)[name].test_accuracy)
    assert f"{value:.2f} ± {deviation:.2f}" in text
    assert "".join(line.split()[0] for line in text.splitlines()[4:] if line.strip()).startswith(name)


def test_trials_of_different_length_are_told():
    assert "2 × 1–3" in shown(trial("x", 0, [0.5] * 3) + trial("x", 1, [0.5]), 80)


def test_an_empty_table():
    assert "train loss" in shown([], 80)


# --- Markdown


def test_markdown_is_headed_by_its_circumstances():
    rows = trial("sgdm", 0, [0.5, 0.6]) + trial("sgdm", 1, [0.5, 0.7])
    rows = [row._replace(seconds=s) for row, s in zip(rows, (1.0, 9.0, 2.0, 2.5), strict=True)]
    text = results.markdown(record(rows))
    assert "Not complete" not in text
    for part in ("`o2nc cifar10 --epochs 2`", "Abacus 9", "cpu", "4 processors", "o2nc 1.2.3", "torch 9.8"):
        assert part in text
    for part in ("python 3.99", "lr 0.01, batch 128", "2 of 2 complete, 4 epochs", "2.25 s (median)", "1:02:03"):
        assert part in text
    lines = text.splitlines()
    assert "| sgdm | 3500 ± 707 | 65.0 ± 7.1 | 135.0 ± 7.1 | 65.00 ± 7.07 | 65.00 ± 7.07 | – | – | 2 × 2 |" in lines
    assert "| paper | 9.82 ± 0.21 | 100.0 ± 0.0 | 21.6 ± 0.1 | 94.6 ± 0.1 | – | – | – | – |" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_markdown_says_that_it_is_not_complete():
    rows = [make(seed=s) for s in (0, 1, 2)]
    text = results.markdown(record(rows, complete=False, seconds=None))
    assert "**Not complete: 1 of 3 trials are over.**" in text
    assert "in total –" in text
    assert "0 of 0" in results.markdown(record([], complete=False))


def test_markdown_prices_the_spread():
    rows = [make(gradient=0.25, spread=0.5)]
    assert "| 0.750 |" in results.markdown(record(rows))
    assert "| 1.75 |" in results.markdown(record(rows), c=3)


# --- pictures


def test_figure_1_has_three_panels_a_line_and_a_band_per_arm():
    rows = rising(SIX[:2], seeds=3, epochs=12)
    picture = curves.figure(rows)
    assert [axes.get_title() for axes in picture.axes] == ["Train loss", "Train accuracy", "Test accuracy"]
    assert [axes.get_yscale() for axes in picture.axes] == ["log", "linear", "linear"]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == SIX[:2]
    assert all(axes.get_legend() is None for axes in picture.axes)
    for axes in picture.axes:
        assert (len(axes.get_lines()), len(axes.collections)) == (2, 2)
    values = np.array([[r.test_accuracy for r in rows if r.arm == "sgdm" and r.seed == s] for s in range(3)])
    epochs, mean = drawn(picture.axes[2])[0]
    assert list(epochs) == list(range(1, 13))
    assert mean == pytest.approx(values.mean(0))
    edge = picture.axes[2].collections[0].get_paths()[0].vertices[:, 1]
    assert edge.max() == pytest.approx((values.mean(0) + values.std(0, ddof=1)).max())


def test_the_band_stays_above_0_on_the_log_axis():
    rows = [make(seed=s, epoch=e, train_loss=v) for e in (1, 2) for s, v in enumerate((1e-3, 1e-3, 1.0))]
    axes = curves.figure(rows).axes[0]
    assert np.mean([1e-3, 1e-3, 1.0]) < np.std([1e-3, 1e-3, 1.0], ddof=1)
    assert axes.collections[0].get_paths()[0].vertices[:, 1].min() == pytest.approx(1e-3)


def test_the_band_of_an_accuracy_stays_below_1():
    rows = [make(seed=s, epoch=e, test_accuracy=v) for e in (1, 2) for s, v in enumerate((0.1, 0.95, 0.95))]
    assert curves.figure(rows).axes[2].collections[0].get_paths()[0].vertices[:, 1].max() == 1


def test_means_end_where_the_first_trial_does_and_every_trial_goes_on():
    rows = trial("x", 0, [0.5, 0.6, 0.7, 0.8]) + trial("x", 1, [0.3, 0.4])
    lines = [values for _, values in drawn(curves.figure(rows).axes[2])]
    expected = ([0.5, 0.6, 0.7, 0.8], [0.3, 0.4, NAN, NAN], [0.4, 0.5, NAN, NAN])
    assert len(lines) == 3
    for line, values in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line, values)


def test_a_diverged_trial_leaves_the_others_visible(tmp_path):
    rows = trial("x", 0, [0.5, 0.6, 0.7]) + trial("x", 1, [0.3, 0.4, 0.5])
    rows[4:] = [rows[4]._replace(train_loss=math.inf), rows[5]._replace(train_loss=NAN)]
    picture = curves.figure(rows)
    first, second, mean = (values for _, values in drawn(picture.axes[0]))
    np.testing.assert_allclose(first, [0.5, 0.4, 0.3])
    np.testing.assert_allclose(second, [0.7, NAN, NAN])
    np.testing.assert_allclose(mean, [0.6, NAN, NAN])
    figures.save(picture, tmp_path, "diverged")


@pytest.mark.parametrize("loss", [NAN, 0.0])
def test_a_loss_that_a_log_axis_cannot_show(loss, tmp_path):
    figures.save(curves.figure([make(train_loss=loss, epoch=e) for e in (1, 2)]), tmp_path, "nothing")


def test_one_epoch_is_a_point():
    picture = curves.figure([make()])
    for axes in picture.axes:
        (line,) = axes.get_lines()
        assert line.get_marker() == "o"
    assert picture.axes[1].get_ylim() == (0, 1)
    few = curves.figure(rising(["x"], seeds=1, epochs=curves.FEW))
    assert few.axes[0].get_lines()[0].get_marker() == "o"
    long = curves.figure(rising(["x"], seeds=1, epochs=curves.FEW + 1))
    assert long.axes[0].get_lines()[0].get_marker() in (None, "None", "")


def test_up_to_eight_arms_have_their_own_colours_and_three_times_as_many_their_own_style():
    arms = classification.by_arm([make(arm=f"arm {i}") for i in range(24)])
    lines = curves.legend(arms)
    assert len({line.get_color() for line in lines[:8]}) == 8
    assert len({(line.get_color(), line._unscaled_dash_pattern) for line in lines}) == 24


@pytest.mark.parametrize("names", [[f"scale-free(lr=0.00{i})+exponential" for i in range(12)], ["s" * 200, "sgdm"]])
def test_the_legend_stays_in_the_picture(names):
    rows = rising(names, seeds=1, epochs=2)
    rows = [row._replace(gradient=1.0, spread=1.0) for row in rows]
    for picture in (curves.figure(rows), curves.certificates(rows)):
        picture.draw_without_rendering()
        frame, box = picture.bbox, picture.legends[0].get_window_extent()
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1
        assert all(axes.get_window_extent().height > 0.2 * frame.height for axes in picture.axes)


def test_a_diverged_arm_is_called_so():
    rows = trial("x", 0, [0.5, 0.6]) + trial("y", 0, [0.5, 0.6])
    rows[-1] = rows[-1]._replace(train_loss=None)
    assert [line.get_label() for line in curves.legend(classification.by_arm(rows))] == ["x", "y (diverged)"]


def test_under_a_power_of_ten_ticks_are_plain_numbers():
    picture = curves.figure(trial("x", 0, [0.2, 0.4, 0.6]))
    picture.draw_without_rendering()
    axes = picture.axes[0]
    low, high = axes.get_ylim()
    ticks = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(ticks) >= 3
    assert all(0.4 <= float(tick) <= 0.8 for tick in ticks)
    assert not axes.yaxis.get_minorticklocs().size
    assert picture.axes[0].get_xlim()[0] > 0.5  # few epochs: from the first


def test_the_title_is_the_one_that_is_given():
    rows = rising(["x+"], 1, 2)
    for picture in (curves.figure(rows, "Small"), curves.certificates(rows, 1.0, "Small")):
        assert picture.get_suptitle() == "Small: one trial per arm"
    assert curves.figure(rows).get_suptitle().startswith("CIFAR-10, ResNet-18: ")


def test_the_end_of_a_long_run_is_enlarged_unless_a_curve_is_in_the_way():
    rows = rising(["x", "y"], seeds=2, epochs=40)
    (inset,) = curves.figure(rows).axes[2].child_axes
    low, high = inset.get_ylim()
    late = [row.test_accuracy for row in rows if row.epoch >= 30]
    assert inset.get_xlim() == (30, 40)
    assert low < min(late) < max(late) < high < low + 0.05
    assert not curves.figure([row for row in rows if row.epoch <= 20]).axes[2].child_axes
    assert not curves.figure(rows + trial("diverged", 0, [0.1] * 40)).axes[2].child_axes


def test_certificates_have_four_panels_with_the_arms_that_keep_averages():
    rows = rising(["plain", "x+", "y+"], seeds=2, epochs=6)
    picture = curves.certificates(rows, c=3)
    assert [axes.get_yscale() for axes in picture.axes] == ["log", "log", "log", "linear"]
    assert [len(axes.get_lines()) for axes in picture.axes] == [2, 2, 2, 4]
    labels = [text.get_text() for text in picture.legends[0].get_texts()]
    assert labels[:2] == ["x+", "y+"]
    assert len(labels) == 3
    assert "c = 3" in picture.axes[2].get_title()
    gradient, spread, both = (drawn(axes)[0][1] for axes in picture.axes[:3])
    assert gradient == pytest.approx(1 / np.arange(1, 7))
    assert spread == pytest.approx(0.15 / np.arange(1, 7))
    assert both == pytest.approx(gradient + 3 * spread)
    colours = [[line.get_color() for line in p.axes[1].get_lines()] for p in (curves.figure(rows), picture)]
    assert colours[0][1:] == colours[1]


def test_averages_are_marked_where_they_were_measured():
    rows = [
        make(epoch=e, gradient=0.1, spread=0.1, average_accuracy=0.9 if e in (2, 4) else None) for e in range(1, 5)
    ]
    panel = curves.certificates(rows).axes[3]
    (epochs, _), (measured, values) = drawn(panel)
    assert list(epochs) == [1, 2, 3, 4]
    assert list(measured) == [2, 4]
    assert list(values) == [0.9, 0.9]
    assert panel.get_lines()[1].get_markerfacecolor() == "white"
    assert panel.get_ylim()[0] < 0.7 < 0.9 < panel.get_ylim()[1]


def test_without_averages_there_are_no_certificates():
    assert curves.certificates([make()]) is None
    assert curves.certificates([]) is None


@pytest.mark.some(1)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 30), (8, 1, 12)])
def test_save_writes_both_and_nothing_else(shape, tmp_path):
    arms, seeds, epochs = shape
    rows = rising([f"{i}+" for i in range(arms)], seeds, epochs)
    for name, picture in (("training", curves.figure(rows)), ("certificates", curves.certificates(rows))):
        paths = figures.save(picture, tmp_path, name)
        assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg"]
        assert paths[0].read_bytes().startswith(b"\x89PNG")
        assert "<svg" in paths[1].read_text(encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == 4


def test_an_empty_run_draws_empty_panels(tmp_path):
    figures.save(curves.figure([]), tmp_path, "empty")


# --- lines


def test_line():
    row = make(
        "sgdm+exponential", 0, 12, train_loss=0.12341, train_accuracy=0.951, test_loss=0.3456, test_accuracy=0.902
    )
    assert study.epoch_line(row, 200, 21345.4, 201.3) == (
        "sgdm+exponential seed 0  epoch  12/200  train 0.1234 95.1 %  test 0.3456 90.2 %  21,345 images/s  3:21 left"
    )
    assert study.epoch_line(row, 12, 1, 3599.6).endswith(
        "epoch 12/12  train 0.1234 95.1 %  test 0.3456 90.2 %  1 images/s  1:00:00 left"
    )
    assert study.epoch_line(make(train_loss=NAN, test_loss=None), 1, 5, None).endswith(
        "train nan 80.0 %  test nan 70.0 %  5 images/s"
    )
