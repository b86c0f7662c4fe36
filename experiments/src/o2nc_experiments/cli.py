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
    goes_on = GOES_ON if {"gpt", "cifar10", "demo"} & set(sys.argv[1:2]) else ""
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

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"o2nc {__version__}")
            raise typer.Exit

    @app.callback(epilog="Start with:  o2nc demo")
    def top(
        context: typer.Context,
        version: Annotated[
            bool, option("Print the version.", "--version", metavar="", callback=show_version, is_eager=True)
        ] = False,
    ) -> None:
        """Weights that need no schedule, for the optimizer that you have.

        o2nc also tells you what the run is doing, and steps so that non-smooth losses cannot trap it.
        """
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
            str | None,
            option("A text, a folder of texts or token files; without it Python's own sources.", metavar="PATH"),
        ] = None,
        arms: Annotated[
            str, option("Of constant, wsd, linear, cosine, schedule-free, scaled, muon, muon-wsd.")
        ] = "constant,wsd,linear",
        size: Annotated[str | None, option("tiny, small or medium; without it tiny, on a GPU medium.")] = None,
        horizons: Annotated[str | None, option("Numbers of steps, with commas between.")] = None,
        seeds: Seeds = "0,1",
        tune_seed: Annotated[int, option("The seed on which learning rates are chosen.", min=0)] = 100,
        grid: Annotated[
            str, option("Learning rates to try, as multiples of the arm's; one value: no tuning.")
        ] = "0.5,1,2",
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
    def bench(
        out: Out = "o2nc-bench",
        models: Annotated[
            str | None, option("Of resnet18, gpt2, gpt2-xl and many; without it what fits the device.")
        ] = None,
        rounds: Annotated[int, option("Timed steps of every optimizer.", min=1)] = 21,
        device: Device = None,
        quiet: Quiet = False,
    ) -> None:
        """Time optimizer steps against torch's own, and count the bytes of their state (a minute).

        Example:  o2nc bench --models resnet18 --device cpu
        """
        run("bench", out, models=models, rounds=rounds, device=device, quiet=quiet)

    return app
