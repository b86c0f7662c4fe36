"""The demo: what the library is for, in about a minute on two cores.

* `climber`: momentum that walks uphill for ever, and the same with random scaling, with its picture.
* `digits`: a network with kinks on real handwriting, trained with and without random scaling.
* `command` runs both, shows and writes them, and has their part of the page.
"""
