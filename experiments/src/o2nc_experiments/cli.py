"""The command line ``o2nc``: one function per command, which takes its options and calls the experiment.

typer, rich and matplotlib are imported when they are needed: `main` says in one line which packages are missing.
torch and the library are imported by the commands, so that ``--help`` is quick.
"""

import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from o2nc_experiments import __version__

if TYPE_CHECKING:
    import typer

EXTRAS = ("typer", "rich", "matplotlib", "sklearn")
SEEDS = 3
ROUNDS = 41  # odd, so that the median is one of them
WORKERS = min(os.cpu_count() or 1, 8)


def main() -> None:
    """Run the command line, as the script ``o2nc`` does."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on font caches are not ours to print
    if not all(map(find_spec, EXTRAS)):
        print("The command line needs other packages: pip install o2nc-experiments", file=sys.stderr)
        sys.exit(1)
    from o2nc_experiments.console import INTERRUPTED, TERMINATED, print_error

    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe on Windows cannot encode ‖ḡ‖
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that workers are told and files are finished
    try:
        code = build_app()(prog_name="o2nc", standalone_mode=False)
        if code == INTERRUPTED:  # typer's answer to Ctrl-C where no command has answered (`interruptible`)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print_error("interrupted")
        code = INTERRUPTED
    except OSError as error:
        print_error(str(error))
        code = 1
    except Exception as error:
        # typer's refusals of arguments: their class has moved between its versions, this method has not
        if not hasattr(error, "format_message"):
            raise
        from o2nc_experiments.app import explain

        print_error(explain(error))
        code = 2
    sys.exit(code)


def build_app() -> "typer.Typer":
    """Return the application, made here because its parts need typer."""
    import typer

    from o2nc_experiments.app import Command, Group
    from o2nc_experiments.cifar10.options import Options as Cifar10
    from o2nc_experiments.console import folder_if_used, folder_name, interruptible, make_folder, refusals
    from o2nc_experiments.gpt.options import Options as Gpt
    from o2nc_experiments.options import DEVICE, FIRST_SEED, LARGEST_SEED, QUIET, taking

    FirstSeed: TypeAlias = Annotated[int, typer.Option(help=FIRST_SEED, min=0, max=LARGEST_SEED)]
    Seed: TypeAlias = Annotated[int, typer.Option(help="Of everything that is random.", min=0, max=LARGEST_SEED)]
    Workers: TypeAlias = Annotated[int, typer.Option(help="Processes.", min=1)]
    Device: TypeAlias = Annotated[str | None, typer.Option(help=DEVICE)]
    Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", help=QUIET)]

    def folder(text: str) -> Any:
        return typer.Option(help=text, parser=folder_name, metavar="<dir>")

    app = typer.Typer(cls=Group, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

    class Plan(Command):
        """Some of whose options stand for each other."""

        one_of = (("steps", "eps"), ("c", "smoothness", "second_order"))

    @app.callback(invoke_without_command=True)
    def top(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        """Any online learner as a PyTorch optimizer, with a stationarity certificate.

        Example:  o2nc demo
        """
        if version:
            print(f"o2nc {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())
        else:
            return
        raise typer.Exit

    @app.command(cls=Command)
    def demo(
        out: Annotated[
            Path,
            typer.Option(
                help="Folder for report.html, demo.json and climber.png; made if missing.",
                file_okay=False,
                writable=True,
            ),
        ] = Path("o2nc-demo"),
        seed: Annotated[int, typer.Option(help=f"First of {SEEDS} consecutive seeds.", min=0, max=LARGEST_SEED)] = 0,
        steps: Annotated[int, typer.Option(help="Steps of every climber.", min=100)] = 5000,
        epochs: Annotated[int, typer.Option(help="Epochs of every network.", min=2)] = 30,
        quiet: Quiet = False,
    ) -> None:
        """Watch momentum walk uphill, and train a network on real handwriting with and without random scaling.

        It takes about a minute on two cores and ends with a page to read: report.html.

        Example:  o2nc demo --out pictures --seed 7
        """
        from o2nc_experiments.demo import command

        with interruptible(), folder_if_used(out):
            command.show(out, range(seed, seed + SEEDS), steps, epochs, quiet)

    @app.command(cls=Plan)
    def plan(
        gap: Annotated[float, typer.Option(help="F*, at least F(start) − inf F.")],
        lipschitz: Annotated[float, typer.Option(help="G, the largest gradient norm.")],
        noise: Annotated[float, typer.Option(help="σ, root mean square error of a stochastic gradient.")] = 0.0,
        steps: Annotated[int | None, typer.Option(help="N; or give --eps.")] = None,
        eps: Annotated[float | None, typer.Option(help="Target; the least N for it is found.")] = None,
        c: Annotated[float | None, typer.Option("--c", help="Price of spread.")] = None,
        smoothness: Annotated[
            float | None, typer.Option(help="H of a smooth F; chooses the best c (H²/B, B the bound, but for sharp).")
        ] = None,
        second_order: Annotated[float | None, typer.Option(help="ρ of ∇²F; chooses c = ρ/2.")] = None,
        constants: Annotated[str, typer.Option(help="sharp, regret, paper or both (sharp and paper).")] = "both",
        law: Annotated[
            list[str] | None,
            typer.Option(help="Law of s, as gamma(16) or jitter(0.25): a sharp plan for it. May be repeated."),
        ] = None,
    ) -> None:
        """Print the theorem's hyperparameters and what they guarantee.

        Example:  o2nc plan --steps 100000 --c 1 --gap 1 --lipschitz 1 --noise 1
        """
        from o2nc_experiments import planning

        known = {"c": c, "gap": gap, "lipschitz": lipschitz, "noise": noise}
        planning.show(steps, eps, constants, law or (), **known, smoothness=smoothness, second_order=second_order)

    @app.command(cls=Command)
    def verify(
        only: Annotated[
            list[str] | None, typer.Argument(help="Names of checks, or how they begin; all if none.")
        ] = None,
        out: Annotated[Path | None, folder("Folder for verify.json, verify.md and report.html.")] = None,
        seed: Seed = 0,
        workers: Workers = WORKERS,
        quiet: Quiet = False,
    ) -> None:
        """Check every statement of the paper, and every erratum, by running it (about a minute).

        Exit code 1 if a verdict is wrong.

        Example:  o2nc verify --out results
        """
        from o2nc_experiments.verify import command

        with interruptible():
            if not command.show(only or [], None if out is None else make_folder(out), seed, workers, quiet):
                raise typer.Exit(1)

    @app.command(cls=Command)
    def rates(
        out: Annotated[Path, folder("Folder for rates.json, pictures and report.html.")] = Path("o2nc-rates"),
        seed: FirstSeed = 0,
        seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 8,
        largest: Annotated[int, typer.Option(help="The longest runs have 2^LARGEST steps.", min=12, max=24)] = 17,
        full: Annotated[bool, typer.Option("--full", help="Go to 2^20 steps, over a million.")] = False,
        workers: Workers = WORKERS,
        quiet: Quiet = False,
    ) -> None:
        """Measure certificates against steps, with bounds; then guarantees, traps and the hard chain (five minutes).

        Exit code 1 if a bound of a theorem is exceeded.

        Example:  o2nc rates --out results --seeds 3
        """
        from o2nc_experiments.rates import command

        with interruptible():
            chosen = range(seed, seed + seeds)
            if not command.show(make_folder(out), chosen, 20 if full else largest, workers, quiet):
                raise typer.Exit(1)

    @app.command(cls=Command)
    def nonsmooth(
        out: Annotated[Path, folder("Folder for nonsmooth.json, tables, pictures and report.html.")] = Path(
            "o2nc-nonsmooth"
        ),
        seed: FirstSeed = 0,
        seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1, max=1000)] = 10,
        quick: Annotated[bool, typer.Option("--quick", help="Two problems, 400 steps: half a minute.")] = False,
        others: Annotated[
            bool, typer.Option("--others", help="AdamW, NAdam and ScaleFree under laws of s, and nothing else.")
        ] = False,
        workers: Workers = WORKERS,
        quiet: Quiet = False,
    ) -> None:
        """Measure on non-smooth problems what randomness costs, and what a run without a horizon does.

        It takes a quarter of an hour.

        Example:  o2nc nonsmooth --quick --out try
        """
        from o2nc_experiments.nonsmooth import command

        with interruptible():
            command.show(make_folder(out), seed, seeds, workers, quick, others, quiet)

    @app.command(cls=Command)
    def bench(
        model: Annotated[
            list[str] | None,
            typer.Option(
                help="resnet18, gpt2, gpt2-xl or many; may be repeated. Without it: what fits.", metavar="NAME"
            ),
        ] = None,
        rounds: Annotated[int, typer.Option(help="Timed steps of every contender.", min=1)] = ROUNDS,
        device: Device = None,
        training: Annotated[bool, typer.Option("--training", help="Time training steps of ResNet-18, too.")] = False,
        out: Annotated[Path | None, folder("Folder for bench.json, bench.md and report.html.")] = None,
        seed: Seed = 0,
        quiet: Quiet = False,
    ) -> None:
        """Time optimizer steps against torch's own and a plain copy (about half a minute).

        Exit code 1 if a contender fails.

        Example:  o2nc bench --model resnet18 --device cpu --out results
        """
        from o2nc_experiments import bench
        from o2nc_experiments.bench import command

        with refusals():
            planned = bench.plan(model or [], rounds=rounds, device=device, training=training, seed=seed)
        with interruptible():
            if not command.show(planned, None if out is None else make_folder(out), quiet):
                raise typer.Exit(1)

    @app.command(cls=Command)
    @taking(Cifar10)
    def cifar10(options: Cifar10) -> None:
        """Make Table 1 and Figure 1: ResNet-18 on CIFAR-10, scaled and not.

        Started again with the same arguments, it goes on where it was.

        Examples:  o2nc cifar10 --data DIR --seeds 3 --epochs 200

        o2nc cifar10 --data DIR --out try --epochs 2 --width 8 --limit 2000 --seeds 1   (on a CPU)
        """
        from o2nc_experiments.cifar10 import command

        with interruptible("; the same command goes on"):
            command.show(options)

    @app.command(cls=Command)
    @taking(Gpt)
    def gpt(options: Gpt) -> None:
        """Train a language model without a schedule: one run, read off at x̄ at every horizon, against decayed runs.

        Small on a CPU (two minutes), 33 M parameters on a GPU. Started again with the same arguments, it goes on.

        Example:  o2nc gpt --arm adamw:constant+t^12 --arm adamw:wsd20 --horizons 100,200,400 --sweep lr=1e-3,2e-3
        """
        from o2nc_experiments.gpt import command

        with interruptible("; the same command goes on"):
            command.show(options)

    @app.command(cls=Command)
    def report(
        folders: Annotated[
            list[Path], typer.Argument(help="Folders of results, or single files of them.", metavar="DIR")
        ],
        out: Annotated[
            Path | None,
            typer.Option(help="The page; without it report.html, in the folder if there is but one.", dir_okay=False),
        ] = None,
        quiet: Quiet = False,
    ) -> None:
        """Make a page of results again, those of any commands above, several side by side.

        Example:  o2nc report o2nc-demo

        o2nc report monday/bench.json friday/bench.json --out compared.html
        """
        from o2nc_experiments import console, page

        console.print_plain(console.make_console(quiet), f"Report: {page.write(folders, out)}")

    return app
