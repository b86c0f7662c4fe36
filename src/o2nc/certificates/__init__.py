"""From points and their gradients to a bound on ‖∇F(x̄)‖_c, and what follows from it.

    points, gradients  →  weights p  →  sums ‖Σp g‖ and Σp‖y − x̄‖²  →  certificate

* `certificate`: the `Certificate` itself, what it says of a gradient norm and of `Goldstein` points, and `certify`,
  the way from a list of iterates to a certificate; an optimizer keeps the sums itself (`o2nc.averages`).
* `trajectory`: the K iterates and gradients, read in blocks, and every sum over them.
* `weights`: those with the least certificate.
* `minimize`: steps of its own (`search`) until the certificate of the points evaluated is at most eps; `oracle` calls
  the function.
* `diagnosis`, `displacement`, `ladder`: what a run is doing, and a learning rate that follows it.
"""
