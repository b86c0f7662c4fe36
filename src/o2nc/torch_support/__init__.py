"""What torch asks of an optimizer beside its step, without knowing which optimizer it is.

`checkpoints` save and load, with `encoding` for laws and learners; `groups` has what parameter groups share,
`device_state` what is on the device while kernels run; `compiling` shows a step to a compiler, `shards` has
parameters in parts, `batchnorm` makes statistics for other weights, `private` holds what has no public name in torch.
"""
