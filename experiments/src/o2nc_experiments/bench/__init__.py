"""How long an optimizer's step takes, against torch's own and against what the memory allows.

    time >= (bytes that the step has to move) / (bytes per second of a plain copy)

* `contenders`: who is compared, with the bytes that each has to move, and on which parameters.
* `timing`: the clocks; `hardware`: the device and its memory.
* `steps`: one table per set of parameters; `training`: whole training steps.
* `view`: the tables in Markdown and for a terminal; `report`: a run from plan to files.

``python -m o2nc_experiments.bench`` needs torch and numpy only, for machines without the extras.
"""

from o2nc_experiments.bench.contenders import MODELS, Contender, line_up
from o2nc_experiments.bench.report import Report, circumstances, plan, run, save
from o2nc_experiments.bench.steps import Row, measure
from o2nc_experiments.bench.timing import Timing, take_turns
from o2nc_experiments.bench.training import TrainingRow, measure_training
from o2nc_experiments.bench.view import grids, heading, markdown

__all__ = [
    "MODELS",
    "Contender",
    "Report",
    "Row",
    "Timing",
    "TrainingRow",
    "circumstances",
    "grids",
    "heading",
    "line_up",
    "markdown",
    "measure",
    "measure_training",
    "plan",
    "run",
    "save",
    "take_turns",
]
