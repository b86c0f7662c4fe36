"""What torch asks of an optimizer beside its step.

`checkpoints` loads state, `plain` writes windows, laws and learners as dictionaries, `shards` steps the local part of
sharded parameters, `compiling` shows a step to torch.compile, `private` holds what has no public name in torch.
"""
