"""The optimizers, each a final class that describes its step; `base` is the one abstract class.

`exponentiated` is Algorithm 2 with any learner, `original` Algorithm 1, `sgdm` replaces ``torch.optim.SGD``, `extend`
scales any torch optimizer in place.
"""
