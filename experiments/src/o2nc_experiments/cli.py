"""The command line ``o2nc``: one function per command, which passes its options to the script of that name.

The scripts are imported by the commands, so that ``--help`` and ``--version`` answer without torch.
"""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from o2nc_experiments import __version__, kit

NEEDED = ("typer", "rich", "matplotlib", "jinja2")
ARMS = ("constant", "wsd", "linear", "cosine", "schedule-free", "scaled", "muon", "muon-wsd")  # of gpt
GOES_ON = "; the same command goes on"


def main() -> None:
    """Run the command line, as the script ``o2nc`` does."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"o2nc: {', '.join(missing)} missing: pip install o2nc-experiments", file=sys.stderr)
        raise SystemExit(1)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on font caches
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a pipe on Windows cannot encode x̄
    goes_on = GOES_ON if {"demo", "gpt", "cifar10", "nonsmooth"} & set(sys.argv[1:3]) else ""
    with kit.ending("o2nc", goes_on):
        code = _call(build_app())
        if code == kit.INTERRUPTED:  # typer's own answer to Ctrl-C
            raise KeyboardInterrupt
    raise SystemExit(code)


def _call(app: Any) -> int:
    """Run the application and return its exit code; `kit.UsageError` for options that typer refuses."""
    try:
        return app(prog_name="o2nc", standalone_mode=False) or 0
    except Exception as error:
        # The class of typer's refusals has moved between its versions, this method has not.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        help_ = f" (see {context.command_path} --help)" if context is not None else ""
        raise kit.UsageError(f"{error.format_message().removesuffix('.')}{help_}") from None


def build_app() -> Any:
    """Return the application."""
    import typer

    def option(text: str, *names: str, **more: Any) -> Any:
        return typer.Option(*names, help=text, **more)

    Out = Annotated[str, option("Folder of the results; made if missing.", metavar="DIR")]
    Device = Annotated[str | None, option("cpu, cuda or cuda:N; without it the GPU if there is one.")]
    Quiet = Annotated[bool, option("Print nothing.", "--quiet", metavar="")]
    Seed = Annotated[int, option("Seed of everything that is random.", min=0)]
    Count = Annotated[int, option("Number of seeds.", min=1)]
    Workers = Annotated[int, option("Processes.", min=1)]
    Seeds = Annotated[str, option("The seeds that are reported, with commas between.")]

    def run(script: str, out: str, **options: Any) -> Any:
        """Check the folder's name, then import the script and call its `main`."""
        folder = kit.folder(out)
        return import_module(f"o2nc_experiments.{script}").main(folder, **options)

    common: dict[str, Any] = {
        "add_completion": False,
        "pretty_exceptions_enable": False,
        "invoke_without_command": True,
    }
    app = typer.Typer(**common, rich_markup_mode="rich")
    paper = typer.Typer(**common)
    app.add_typer(paper, name="paper", help="For readers of the paper: its statements checked by running them.")

    @paper.callback()
    def paper_top(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    @app.callback(epilog="Start with:  o2nc demo")
    def top(
        context: typer.Context,
        version: Annotated[bool, option("Print the version.", "--version", metavar="", is_eager=True)] = False,
    ) -> None:
        """Weights that need no schedule, for the optimizer that you have.

        o2nc also tells you what the run is doing, and steps so that non-smooth losses cannot trap it.
        """
        if version:
            print(f"o2nc {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help())

    @app.command()
    def demo(out: Out = "o2nc-demo", seed: Seed = 0, quiet: Quiet = False) -> None:
        """Train a small GPT without a schedule, and free momentum from a trap: two minutes, one page.

        Example:  o2nc demo --out try
        """
        run("demo", out, seed=seed, quiet=quiet)

    @app.command()
    def gpt(
        out: Out = "o2nc-gpt",
        data: Annotated[
            str | None, option("A text, a folder of texts, or token files; else Python's sources.")
        ] = None,
        arms: Annotated[str, option(f"Of {', '.join(ARMS)}.")] = "constant,wsd,linear",
        size: Annotated[str | None, option("tiny, small or medium; without it tiny, on a GPU medium.")] = None,
        horizons: Annotated[str | None, option("Numbers of steps, with commas between.")] = None,
        seeds: Seeds = "0,1",
        tune_seed: Annotated[int, option("The seed on which learning rates are chosen.", min=0)] = 100,
        grid: Annotated[str, option("Learning rates to try, as multiples of the arm's; or one value.")] = "0.5,1,2",
        device: Device = None,
        save_every: Annotated[float, option("Seconds between two checkpoints.", min=0)] = 120.0,
        quiet: Quiet = False,
    ) -> None:
        """Train a GPT: one run without a schedule, read at x̄ at every horizon, against decayed runs.

        A tiny model on a CPU, a usual one on a GPU. Started again, the same command goes on.

        Example:  o2nc gpt --arms constant,wsd,muon --horizons 100,200,400
        """
        place = Path(data) if data else None
        settings = {"arms": arms, "size": size, "horizons": horizons, "seeds": seeds, "tune_seed": tune_seed}
        run("gpt", out, data=place, **settings, grid=grid, device=device, save_every=save_every, quiet=quiet)

    @app.command()
    def cifar10(
        out: Out = "o2nc-cifar10",
        data: Annotated[str | None, option("Folder of the official binary files; else they are fetched.")] = None,
        study: Annotated[str, option("table (the paper's), horizons (one run against cosines) or laws.")] = "table",
        seeds: Seeds = "0,1,2",
        epochs: Annotated[int, option("Of a run, for all studies but horizons.", min=1)] = 200,
        horizons: Annotated[str, option("Numbers of epochs, with commas between.")] = "10,20,40,80,200",
        lr: Annotated[float | None, option("Of every arm; without it each has its own.")] = None,
        width: Annotated[int, option("Of the network.", min=1)] = 64,
        limit: Annotated[int | None, option("Images to use of each part, for a try.", min=1)] = None,
        device: Device = None,
        save_every: Annotated[float, option("Seconds between two checkpoints.", min=0)] = 60.0,
        quiet: Quiet = False,
    ) -> None:
        """Train ResNet-18 on CIFAR-10: the paper's Table 1, or one run without a schedule against cosines.

        Started again, the same command goes on.

        Example:  o2nc cifar10 --data DIR --study horizons
        """
        settings = {"study": study, "seeds": seeds, "epochs": epochs, "horizons": horizons, "lr": lr, "width": width}
        settings |= {"limit": limit, "device": device, "save_every": save_every, "quiet": quiet}
        run("cifar10", out, data=Path(data) if data else None, **settings)

    @app.command()
    def bench(
        out: Out = "o2nc-bench",
        models: Annotated[str | None, option("Of resnet18, gpt2, gpt2-xl, many; else what fits.")] = None,
        rounds: Annotated[int, option("Timed steps of every optimizer.", min=1)] = 11,
        device: Device = None,
        quiet: Quiet = False,
    ) -> None:
        """Time optimizer steps against torch's own, and count the bytes of their state (two minutes).

        Exit code 1 if an optimizer fails.

        Example:  o2nc bench --models resnet18 --device cpu
        """
        if not run("bench", out, models=models, rounds=rounds, device=device, quiet=quiet):
            raise typer.Exit(1)

    @paper.command()
    def verify(
        only: Annotated[str | None, option("Names of rows or their beginnings, with commas between.")] = None,
        out: Out = "o2nc-verify",
        seed: Seed = 0,
        workers: Workers = 2,
        quiet: Quiet = False,
    ) -> None:
        """Check every statement of the paper, and every erratum, by running it (about a minute).

        Exit code 1 if a verdict is wrong.

        Example:  o2nc paper verify --only erratum
        """
        run("verify", out, only=only, seed=seed, workers=workers, quiet=quiet)

    @paper.command()
    def rates(
        out: Out = "o2nc-rates",
        seed: Seed = 0,
        seeds: Count = 8,
        largest: Annotated[int, option("The longest runs have 2^LARGEST steps.", min=12, max=24)] = 17,
        workers: Workers = 2,
        quiet: Quiet = False,
    ) -> None:
        """Measure certificates against the number of steps, beside the bounds of the theorems (five minutes).

        Exit code 1 if a bound of a theorem is exceeded.

        Example:  o2nc paper rates --seeds 3
        """
        run("rates", out, seed=seed, seeds=seeds, largest=largest, workers=workers, quiet=quiet)

    @paper.command()
    def nonsmooth(
        out: Out = "o2nc-nonsmooth",
        seed: Seed = 0,
        seeds: Count = 10,
        quick: Annotated[bool, option("Two problems, 400 steps: half a minute.", "--quick", metavar="")] = False,
        workers: Workers = 2,
        quiet: Quiet = False,
    ) -> None:
        """Measure on non-smooth problems what random scaling costs, and what runs without a horizon do.

        A quarter of an hour. Example:  o2nc paper nonsmooth --quick
        """
        run("nonsmooth", out, seed=seed, seeds=seeds, quick=quick, workers=workers, quiet=quiet)

    @paper.command()
    def plan(
        gap: Annotated[float, option("F*, at least F(start) − inf F.")],
        lipschitz: Annotated[float, option("G, the largest gradient norm.")],
        noise: Annotated[float, option("σ, root mean square error of a stochastic gradient.")] = 0.0,
        steps: Annotated[int | None, option("N; or give --eps.")] = None,
        eps: Annotated[float | None, option("Target; the least N for it is found.")] = None,
        c: Annotated[float | None, option("Price of spread.", "--c")] = None,
        smoothness: Annotated[float | None, option("H of a smooth F, in place of --c.")] = None,
        second_order: Annotated[float | None, option("ρ of ∇²F, in place of --c.")] = None,
        constants: Annotated[str, option("sharp, regret, paper or both (sharp and paper).")] = "both",
        law: Annotated[str | None, option("Law of s, as gamma(16) or jitter(0.25).")] = None,
    ) -> None:
        """Print the hyperparameters of the theorem and what they guarantee.

        Example:  o2nc paper plan --steps 100000 --c 1 --gap 1 --lipschitz 1 --noise 1
        """
        known = {"gap": gap, "lipschitz": lipschitz, "noise": noise, "steps": steps, "eps": eps, "c": c}
        more = {"smoothness": smoothness, "second_order": second_order, "constants": constants, "law": law}
        import_module("o2nc_experiments.plan").main(**known, **more)

    return app
