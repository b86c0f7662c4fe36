"""What the command ``o2nc`` runs: one script per question, on a small kit.

* `demo`, `gpt`, `cifar10`, `bench`: the product, in two minutes and at length.
* `nonsmooth`, `rates`, `verify`, `plan`: the paper, checked by running it.
* Every script has its knobs at the top and its result at its head.
* `kit`: options, records, tables, pictures, the page; `cli`: the command line.

They use the library's public names; nothing in the library imports them.
"""

__version__ = "0.1.0"
