"""A language model without a schedule: one run at a constant learning rate, read off at x̄, against decayed runs.

    data, model → training (arms, optimizers) → experiment (planning, store) → study → results, view

* `data` reads texts or tokens, refuses what is neither, and cuts them into batches, a pure function of the seed.
* `model` is the GPT.
* `arms` are optimizer × schedule × law × windows, by one grammar; `optimizers` makes them, `schedule_free` is one.
* `training` trains the one model of a process, compiled once for all runs; `costs` times the parts of a step.
* `planning` says which runs are still needed, given the results: what shares its learning rates shares its steps.
* `experiment` makes them; `store` is the folder of results, with the run that is not finished.
* `study` is all of it, from options to record. `command` shows it in a terminal, ``python -m o2nc_experiments.gpt``
  where only torch is installed; `results` has the tables and `view` the pictures and the article.
"""
