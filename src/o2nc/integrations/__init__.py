"""o2nc in other people's programs; each module imports the package that it is named after at most, nothing else does.

* `transformers`, `lightning`: x̄ is what their Trainers score and save.
* `averaging`: what these two share.
"""
