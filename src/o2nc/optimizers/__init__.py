"""The optimizers, each a final class that describes its step; `base` is the one abstract class.

`exponentiated` is Algorithm 2 with any learner, `original` Algorithm 1 (`learned`: their rule); `sgdm` and `adamw`
replace torch's; `extend` makes of any other optimizer an `extended` one, whose iterates are `observed`, and whose
steps are `multiplied` where there is a law of s. `readout` has what they say of their averages.
"""
