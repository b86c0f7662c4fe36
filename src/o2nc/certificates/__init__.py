"""From points and their gradients to a bound on ‖∇F(x̄)‖_c, and what follows from it.

    points, gradients  →  weights p  →  sums ‖Σp g‖ and Σp‖y − x̄‖²  →  certificate

* `certificate`: the `Certificate` itself, and its reductions to a gradient norm and to a `Goldstein` point.
* `certify`: the way from a list of iterates to a certificate; an optimizer keeps the sums itself (`o2nc.averages`).
* `minimize`: steps of its own until the certificate of the points evaluated is at most eps.
* `trajectory`: the K iterates and gradients, read in blocks, and every sum over them.
* `best_weights`: the weights with the least certificate; `simplex` solves its convex problem.
"""
