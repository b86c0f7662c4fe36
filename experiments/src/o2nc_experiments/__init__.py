"""What the command ``o2nc`` runs: experiments, each in a folder whose `command` runs it, shows and writes it.

* `demo`, `verify`, `rates`, `cifar10`, `gpt`, `bench`; `planning` is ``o2nc plan``. Knobs stand at the top of files.
* `classification`: what CIFAR-10 and the demo's digits share.
* What CIFAR-10 and GPT share: `arms`, their grammar (`laws` reads laws of s); `folder`, where they can be gone on
  with; `comparison`, one run against a run for every horizon, as tables, which `figures` draws.
* `batch` runs hundreds of small runs as one, `pool` runs jobs side by side.
* `record`: results with their circumstances; `tables`: one table for terminal, Markdown and HTML; `figures`: what
  pictures share; `page`: the HTML page of records; `console`: the terminal; `cli`: all commands;
  `app`: what they have beyond typer's; `options`: those that are declared once for typer and for argparse.

They use the library's public names; nothing in the library imports them.
"""

__version__ = "0.1.0"
