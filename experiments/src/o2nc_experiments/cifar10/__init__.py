"""Table 1 and Figure 1 of the paper: ResNet-18 on CIFAR-10 (Krizhevsky 2009), with random scaling and without.

    data → batches → training (options, processes) → experiment (checkpoints) → command → view

* `data` reads the official files, checks them and gets them.
* `options` are what the command line takes: arms (optimizers by name), settings of all trials, and the rest.
* `batches` shuffles, crops and flips, as a pure function of the seed and a counter.
* `training` trains one trial, captured as a CUDA graph on a GPU; `processes` share its batches.
* `experiment` trains all trials; `checkpoints` are what is known of each, and the folder in which it is kept.
* `command` is what the command line runs; `view` has its table, its document and its article.
"""
