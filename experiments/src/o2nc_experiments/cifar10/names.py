"""The names that arms are made of; `arms` says what they stand for, with torch, which ``--help`` does without."""

OPTIMIZERS = (
    *("sgdm", "adamw"),
    *("ogd", "ball-ogd", "ftrl", "adagrad", "ball-adagrad", "scale-free", "coin-betting"),  # learners
)
SCHEDULES = ("cosine", "constant", "linear")
TABLE = ("sgdm", "sgdm+exponential")  # the columns of Table 1
