"""How fast: the mean certificate of a run against its number of steps, and the two ends of the scale.

* `studies`: what is run: problems, ways to choose c, arms with their plans and bounds; `curves` runs and fits them.
* `traps`: where random scaling is what saves momentum; `hard_chain`: where nothing helps.
* `guarantees`: bound against attained where the theorems are tightest, and where G and σ are misjudged.
* `tables`, `article`: how they are shown, with pictures; `command` runs it all.
"""
