"""o2nc in other people's programs; each module imports the package that it is named after at most, nothing else does.

* `transformers`: certificates in the Trainer's logs, x̄ to evaluate and to save.
* `lightning`: the same for Lightning's Trainer, and validation at x̄.
* `accelerate`: certificates to its trackers.
* `matplotlib`: a picture of a log of certificates.
"""
