"""The fused step: learner, scaling, parameters, averages and certificate in one pass over memory.

Triton kernels over tables of addresses: nothing is copied into flat buffers and the user's parameters stay where they
are. One step is a short chain of launches,

    open     one program: counter, s, γ on the device; the coefficients of every tensor
    step     g → learner → x, x̄, ḡ; partial sums of ‖x − x̄‖² and ⟨g, Δ⟩, one pass over memory
    close    V and the progress of every tensor, in float64

and learners with a joint norm measure it first (measure, total: one more pass). Sums are folded in a fixed order,
without atomics, so a run repeats to the bit. What changes from step to step lives on the device: a captured step
replays rightly, and a step that a GradScaler calls off changes nothing.

``laws`` and ``rules`` hold the laws of s and the rules as device functions, ``kernels`` what calls them, ``slots``
the state that they work on, ``tables`` where all that lies, ``uploads`` what changes from step to step, ``launches``
the order; ``engine`` decides. Only ``engine`` is imported by the optimizers; it needs no Triton to say no.
"""
