"""Non-smooth problems: what randomness costs with a decay, and what stands in for a decay without a horizon.

* `arms`: what is compared, as values made of factors; `objectives`: on what.
* `runs`: the algorithm, for many runs at once; `study`: learning rates chosen on some seeds, results on others.
* `escapes`: the traps, and how long a trapped run takes to get free.
* `tables`, `view`: how it is shown; `command` runs it all.
"""
