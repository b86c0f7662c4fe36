"""``python -m o2nc_experiments.cifar10``: the command where only torch is installed."""

from o2nc_experiments import kit
from o2nc_experiments.cifar10 import main

if __name__ == "__main__":
    kit.run_script(main)
