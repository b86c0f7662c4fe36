"""The terminal and the process: one console, progress bars, folders, interrupts, threads.

typer, rich and torch are imported where they are used: ``python -m`` does without the first two, and ``--help``
without torch.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.progress import Progress

INTERRUPTED = 130  # the exit code of a process that Ctrl-C ends
TERMINATED = 143  # and SIGTERM
WIDTH = 118  # of the tables where there is no terminal


def on_terminal() -> bool:
    """Say whether standard output is a terminal; it may not be open at all."""
    return sys.stdout is not None and sys.stdout.isatty()


def make_console(quiet: bool) -> "Console":
    """Return a console as wide as the terminal, or wide enough for the tables where there is none."""
    from rich.console import Console

    return Console(quiet=quiet, highlight=False, width=None if on_terminal() else WIDTH)


def print_plain(console: "Console", text: str) -> None:
    """Print text as it is, in one line however long, so that it can be copied."""
    console.print(text, markup=False, soft_wrap=True)


def print_files(console: "Console", files: Sequence[Path]) -> None:
    """Print where results are."""
    print_plain(console, "Files: " + "  ".join(map(str, files)))


def print_error(text: str) -> None:
    """Print a line on standard error."""
    print(f"o2nc: {text}", file=sys.stderr)


def progress_bar(console: "Console") -> "Progress":
    """Return a progress bar that is shown on terminals only."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    return Progress(*columns, console=console, transient=True, disable=console.quiet or not on_terminal())


@contextmanager
def interruptible(advice: str = "") -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and one line, which SIGTERM gets too; of several processes the first says it."""

    def say(*words: object) -> None:
        if os.environ.get("RANK", "0") == "0":
            print_error(f"{' '.join(map(str, words))}{advice}")

    try:
        yield
    except KeyboardInterrupt as stop:
        say("interrupted", *stop.args)
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as stop:
        if stop.code == TERMINATED:
            say("terminated", *stop.args[1:])
        raise


@contextmanager
def ending() -> Iterator[None]:
    """Say in one line what ends a command without typer: Ctrl-C, SIGTERM, options and files that cannot be used."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM; for the few seconds in which results are written."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch use one thread: sums then do not depend on the number of cores, and small tensors are fastest so."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def refusal(text: str, option: str | None = None) -> "typer.BadParameter":
    """Return what is raised where an option of the command line cannot be used."""
    import typer

    return typer.BadParameter(text, param_hint=option)


@contextmanager
def refusals() -> Iterator[None]:
    """Refuse an option of the command line where something inside says ValueError."""
    try:
        yield
    except ValueError as error:
        raise refusal(str(error)) from None


def folder_name(name: str | Path) -> Path:
    """Return the folder of this name, which need not be there."""
    if not str(name).strip() or Path(name).is_file():
        raise refusal(f"must name a folder, got {str(name)!r}")
    return Path(name)


@contextmanager
def folder_if_used(out: Path) -> Iterator[None]:
    """Make the folder, or refuse by name; what was made is taken away again if nothing was put into it."""
    missing = [folder for folder in (out, *out.parents) if not os.path.exists(folder)]
    try:
        make_folder(out)
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # it is in use
                folder.rmdir()


def make_folder(out: Path) -> Path:
    """Make the folder, or refuse by name."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(f"cannot make the folder '{out}': {error.strerror}", "'--out'") from None
    return out
