"""The command line: ``o2nc``, one subcommand per experiment.

The core needs torch and numpy only, so typer, rich and matplotlib are imported when a command is run.
"""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import o2nc

if TYPE_CHECKING:
    import typer

SEEDS = 3


def main() -> None:
    """Run the command line (the entry point of the script ``o2nc``)."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on font caches are not ours to print
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print("The command line needs extra packages: pip install 'o2nc[experiments]'", file=sys.stderr)
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a pipe on Windows cannot encode ‖ḡ‖
    try:
        code = build_app()(prog_name="o2nc", standalone_mode=False)
    except Exception as error:
        # typer's refusals of arguments: their class has moved between its versions, this method has not
        if not hasattr(error, "format_message"):
            raise
        print(f"o2nc: {error.format_message()}", file=sys.stderr)
        code = 2
    sys.exit(code)


def build_app() -> "typer.Typer":
    """Return the application, made here because its parts need typer."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

    @app.callback(invoke_without_command=True)
    def top(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        """Any online learner as a PyTorch optimizer, with a stationarity certificate.

        Example:  o2nc demo
        """
        if version:
            print(f"o2nc {o2nc.__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())
        else:
            return
        raise typer.Exit

    @app.command()
    def demo(
        out: Annotated[
            Path,
            typer.Option(
                help="Folder for climber.png and climber.json; made if missing.", file_okay=False, writable=True
            ),
        ] = Path("o2nc-demo"),
        seed: Annotated[int, typer.Option(help=f"First of {SEEDS} consecutive seeds.", min=0)] = 0,
        steps: Annotated[int, typer.Option(help="Steps of every run.", min=1)] = 5000,
        quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    ) -> None:
        """Watch momentum walk uphill, and random scaling set it free (about ten seconds).

        Example:  o2nc demo --out pictures --seed 7
        """
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(
                f"cannot make the folder '{out}': {error.strerror}", param_hint="'--out'"
            ) from None
        try:
            run_demo(out, range(seed, seed + SEEDS), steps, quiet)
        except KeyboardInterrupt as stop:
            print("o2nc: interrupted", *stop.args, file=sys.stderr)
            raise typer.Exit(130) from None

    return app


def run_demo(out: Path, seeds: range, steps: int, quiet: bool) -> None:
    """Run the demo, then show and write it; an interrupted one shows and writes the runs that finished."""
    from rich.console import Console
    from rich.progress import Progress

    from o2nc.experiments import demo

    console = Console(quiet=quiet, highlight=False)
    trials = demo.trials(seeds)
    finished: list[demo.Run] = []
    try:
        with Progress(console=console, transient=True, disable=quiet or not sys.stdout.isatty()) as bar:
            task = bar.add_task(f"{len(trials)} runs of {steps} steps", total=len(trials) * steps)
            for trial in trials:
                finished.append(demo.climb(*trial, steps, lambda made: bar.advance(task, made)))
    except KeyboardInterrupt:
        if not finished:
            raise
    picture, numbers = out / "climber.png", out / "climber.json"
    demo.plot(finished, picture)
    demo.save(finished, seeds, steps, numbers)
    console.print(demo.table(finished))
    console.print(f"\n{demo.summary(finished)}")
    console.print(f"Picture: {picture}   Numbers: {numbers}", markup=False, soft_wrap=True)
    if len(finished) < len(trials):
        raise KeyboardInterrupt(f"after {len(finished)} of {len(trials)} runs, which are kept")


if __name__ == "__main__":
    main()
