"""Table 1 and Figure 1 of the paper: ResNet-18 on CIFAR-10 (Krizhevsky 2009), with random scaling and without.

    data → batches → training (arms, processes) → experiment (checkpoints) → study (options, horizons) → results, view

* `data` reads the official files, checks them and gets them.
* `arms` are optimizers, schedules, laws and windows by name (`names`); `options` are all that the command line takes.
* `batches` shuffles, crops and flips, as a pure function of the seed and a counter.
* `training` trains one trial, captured as a CUDA graph on a GPU; `processes` share its batches.
* `experiment` trains all trials; `checkpoints` are what is known of each, and the folder in which it is kept.
* `horizons` says which trials compare one run with a run for every horizon, and has the lines of what came out.
* `study` is all of it, from options to record. `command` shows it in a terminal, ``python -m
  o2nc_experiments.cifar10`` where only torch is installed; `results` has the table and the document, `view` the
  pictures and the article.
"""
