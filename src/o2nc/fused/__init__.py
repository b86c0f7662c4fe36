"""The fused step: rule, scaling, parameters, averages and certificate in one pass over memory.

Triton kernels over tables of addresses: nothing is copied into flat buffers and the user's parameters stay where they
are. One step is a short chain of launches,

    open     one program: counter, s, γ on the device; the coefficients of every tensor
    step     g → rule → x, x̄, ḡ; partial sums of ‖x − x̄‖² and ⟨g, Δ⟩, one pass over memory
    close    V and the progress of every tensor, in float64

Sums are added in a fixed order, without atomics, so a run repeats bitwise. What changes from step to step is on the
device, so that a captured step can be replayed. docs/architecture.md says which steps are taken eagerly instead.

`rule` says what a rule brings along, ``rules`` has those of the library and ``laws`` the laws of s and the windows as
device functions, ``kernels`` what calls them, ``tables`` where everything lies, ``uploads`` what changes from step to
step, ``launch`` the order; ``engine`` decides. Nothing here imports an optimizer, and only ``engine`` is imported by
them; it needs no Triton to say no.
"""
