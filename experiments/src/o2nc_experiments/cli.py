"""The command line ``o2nc``: a name, and the options of the `main` of the script of that name.

The script is imported when it is called, so that ``o2nc --help`` and ``--version`` answer without torch.
"""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec

from o2nc_experiments import __version__, kit

NEEDED = ("rich", "matplotlib", "jinja2")
COMMANDS = {
    "demo": "Train a small GPT without a schedule, and free momentum from a trap: two minutes, one page.",
    "gpt": "Train a GPT: one run without a schedule, read at x̄ at every horizon, against decayed runs.",
    "cifar10": "Train ResNet-18 on CIFAR-10: the paper's Table 1, or one run without a schedule against cosines.",
    "bench": "Time optimizer steps against torch's own, and count the bytes of their state (two minutes).",
    "paper verify": "Check every statement of the paper, and every erratum, by running it (half a minute).",
    "paper rates": "Measure certificates against the number of steps, beside the theorems' bounds (five minutes).",
    "paper nonsmooth": "Measure on non-smooth problems what random scaling costs and buys (a quarter of an hour).",
    "paper plan": "Print the hyperparameters of the theorem and what they guarantee.",
}
RESUMED = ("demo", "gpt", "cifar10", "paper rates", "paper nonsmooth")  # they keep what is finished


def overview() -> str:
    """Return what ``o2nc --help`` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Drop the learning-rate schedule, keep your PyTorch optimizer.",
            "o2nc also tells you what the run is doing, and steps so that non-smooth losses cannot trap it.\n",
            *(f"  o2nc {name:<{width}}  {text}" for name, text in COMMANDS.items()),
            "\nStart with:  o2nc demo.  Options:  o2nc NAME --help.  Version:  o2nc --version",
        ]
    )


def find_parser(name: str) -> kit.Parser:
    """Return the options of a command; imports its script."""
    return kit.Parser(import_module(f"o2nc_experiments.{name.split()[-1]}").main, f"o2nc {name}")


def main() -> None:
    """Run the command line, as the script ``o2nc`` does."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe on Windows cannot encode x̄
    words = sys.argv[1:]
    name, options = next(
        ((key, words[len(key.split()) :]) for key in COMMANDS if words[: len(key.split())] == key.split()), ("", [])
    )
    with kit.ending("o2nc", "; the same command goes on" if name in RESUMED else ""):
        if missing := [module for module in NEEDED if find_spec(module) is None]:
            raise OSError(f"{', '.join(missing)} missing: pip install o2nc-experiments")
        if name:
            logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on font caches
            find_parser(name).call(options)
        elif words in (["--version"], ["-V"]):
            print(f"o2nc {__version__}")
        elif words in ([], ["--help"], ["-h"], ["paper"], ["paper", "--help"]):
            print(overview())
        else:
            raise kit.UsageError(f"there is no command {' '.join(words[:2])!r} (see o2nc --help)")
