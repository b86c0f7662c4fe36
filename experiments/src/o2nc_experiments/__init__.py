"""What the command line runs, with its knobs at the top of each file.

* `demo`, `verify`, `rates`, `extremes` (traps and the hard chain): the experiments. They compute and return data.
* `bench` times optimizer steps, and training steps of `resnet`.
* `batch` runs hundreds of small runs as one, `pool` runs jobs side by side.
* `rates_view`, `planning`: tables and pictures of what was computed; `record`: results with their circumstances.
* `commands` puts them together: run with a progress bar, show, write.

They use the library's public names; nothing in the library imports them.
"""

__version__ = "0.1.0"
