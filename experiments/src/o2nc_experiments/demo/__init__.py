"""The demo: what the library is for, in half a minute on two cores.

* `climber`: momentum that walks uphill for ever, and the same with random scaling; `climber_pictures` draws it.
* `digits`: a network with kinks on real handwriting, trained with and without random scaling.
* `command` runs both with a progress bar, shows and writes them; `story` tells them as sections of a report.
"""
