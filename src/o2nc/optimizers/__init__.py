"""The optimizers: one class, `base.Averaged`, before torch's own.

`torch_optimizers` has SGD and AdamW, `extend` makes the same of any other optimizer; `paper` has what the paper's
optimizers know beyond that, and ScaledSGDM, `o2nc` Algorithms 1 and 2. `accessors` has the methods that read the
averages, `swap` puts x̄ in the place of the parameters, `wrapped` finds optimizers that frameworks have wrapped,
`auto_lr` finds a learning rate, `options` checks arguments.
"""
