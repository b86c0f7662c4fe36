"""Table 1 and Figure 1 of the paper: ResNet-18 on CIFAR-10 (Krizhevsky 2009), with random scaling and without.

    data, download → augment, feed → trial (arms, replay, team) → table (entry, keeper, store) → rows → view, pictures

* `data` reads the official files and checks them; `download` gets them.
* `augment` shuffles, crops and flips, as a pure function of the seed and a counter; `feed` is a trial's place in it.
* `arms` are the optimizers by name; `trial` trains with one, captured by `replay` on a GPU, shared out by `team`.
* `table` trains all trials; an `entry` is what is known of one, a `keeper` writes it to the `store`.
* `view` (which is `fitting`) and `pictures` show their `rows`.
* `command` is the command line's part: what was `asked`, and `telling` how far it is.
"""
