"""What the experiments share: options, records, tables, pictures, one page of HTML, and how a command ends.

A script has a function ``main(out, ..., quiet=False)`` with its knobs as keyword arguments, and ends with

    if __name__ == "__main__":
        kit.run_script(main)

which reads ``--flag value`` for every argument of `main`. The command ``o2nc`` reads the same options.
rich, matplotlib and jinja2 are imported where they are used, so that a script runs where only torch is
installed; torch is imported where it is used, so that ``o2nc --help`` is quick.
"""

import argparse
import errno
import inspect
import json
import math
import os
import platform
import re
import secrets
import shlex
import signal
import sys
import types
import typing
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NONE = "–"  # the cell of a table that has no number
WIDTH = 118  # columns of text where there is no terminal
COLOURS = {  # Okabe and Ito's, which can be told apart with any kind of colour vision
    "blue": "#0072B2",
    "red": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "pink": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#666666",
    "black": "#000000",
}


# ---- options, and how a command ends -------------------------------------------------------------------------------


class UsageError(ValueError):
    """An option cannot be used; the command ends with exit code 2 and this text."""


class Parser(argparse.ArgumentParser):
    """The options of a script: one for every argument of its ``main``, explained as in the docstring of ``main``."""

    def __init__(self, main: Callable[..., object], program: str) -> None:
        text = inspect.getdoc(sys.modules[main.__module__]) or ""
        super().__init__(program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.main = main
        helps = dict(re.findall(r"^ {4}(\w+): (.*)$", inspect.getdoc(main) or "", re.MULTILINE))
        for parameter in inspect.signature(main, eval_str=True).parameters.values():
            name, default = parameter.name, parameter.default
            required = default is inspect.Parameter.empty
            more: dict[str, Any] = {"required": required, "default": None if required else default}
            more["help"] = helps.get(name, "") + (" (default: %(default)s)" if more["default"] else "")
            if parameter.annotation is bool:
                more["action"] = argparse.BooleanOptionalAction
            else:
                kinds = [parameter.annotation, *typing.get_args(parameter.annotation)]
                kind = next(k for k in kinds if isinstance(k, type) and k is not types.NoneType)
                more |= {"type": str if name == "out" else kind, "metavar": kind.__name__.upper()}
            self.add_argument(f"--{name.replace('_', '-')}", **more)

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's own, it raises where nothing can be written."""
        print(self.format_help(), end="")

    def error(self, message: str) -> typing.NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def call(self, words: Sequence[str] | None = None) -> None:
        """Call ``main`` with these words as its options, by default those of the command line."""
        options = vars(self.parse_args(words))
        if "out" in options:
            options["out"] = folder(options["out"])
        self.main(**options)


def run_script(main: Callable[..., object]) -> None:
    """Call ``main`` with the options of the command line, and end as a command does."""
    with ending(Path(sys.argv[0]).stem):
        Parser(main, Path(sys.argv[0]).name).call()


@contextmanager
def ending(program: str, advice: str = "") -> Iterator[None]:
    """End with one line on standard error and a code: 2 for `UsageError`, 1 for OSError, 130 for Ctrl-C."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        try:
            yield
        except SystemExit:  # of --help, too
            _flush()
            raise
        _flush()
    except KeyboardInterrupt:
        code, text = 130, f"interrupted{advice}"
    except UsageError as error:
        code, text = 2, str(error)
    except OSError as error:
        name = error.filename or ("standard output" if error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF) else "")
        code, text = 1, f"{name}: {error.strerror}" if name else str(error)
        if isinstance(error, BrokenPipeError):
            text = ""  # the reader of a pipe, `head` for example, has seen enough
    else:
        return
    with suppress(OSError, ValueError):
        if text:
            print(f"{program}: {' '.join(text.split())}", file=sys.stderr, flush=True)
    try:
        _flush()
    except OSError:  # Python would try again at its end, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(code)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def folder(name: str | Path) -> Path:
    """Return the path of a folder that may not exist yet; `UsageError` if the name is empty or a file's."""
    if not str(name).strip() or Path(name).is_file():
        raise UsageError(f"--out must name a folder, got {str(name)!r}")
    return Path(name)


def make_folder(name: str | Path) -> Path:
    """Create the folder if it is missing, and return its path."""
    path = folder(name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def at_least(least: int, **options: int) -> None:
    """Raise `UsageError` for the first option that is smaller."""
    for name, value in options.items():
        if value < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")


def numbers(option: str, text: str, kind: type[Any] = int, least: float = 0) -> list[Any]:
    """Return the numbers of an option such as ``--seeds 0,1,2``; `UsageError` names what is wrong."""
    try:
        found = [kind(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= value < math.inf for value in found):
        raise UsageError(f"{option} must be numbers of at least {least:g} with commas between, got {text!r}")
    return list(dict.fromkeys(found))


def find_device(name: str | None) -> "torch.device":
    """Return the device of this name, without one the GPU if there is one; `UsageError` if it does not exist."""
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = name or ("cuda" if found else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UsageError(f"--device must be cpu, cuda or cuda:N, got {name!r}")
    if name != "cpu" and int(name.partition(":")[2] or 0) >= found:
        raise UsageError(f"--device {name}: torch {torch.__version__} sees {found} CUDA devices here")
    return torch.device(name)


# ---- records -------------------------------------------------------------------------------------------------------


def circumstances(command: str, device: "torch.device | None" = None, **settings: Any) -> dict[str, Any]:
    """Return what somebody needs to repeat a result: command, settings, versions, hardware and date."""
    import torch

    import o2nc

    cuda = device is not None and device.type == "cuda"
    return {
        "command": command,
        **settings,
        "hardware": torch.cuda.get_device_name(device) if cuda else _processor(),
        **({"cuda": torch.version.cuda} if cuda else {"processors": os.cpu_count()}),
        "threads": torch.get_num_threads(),
        "o2nc": o2nc.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(errors="replace"))
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def written_command(program: str, main: Callable[..., object], **options: Any) -> str:
    """Return the command line with the options that differ from the defaults of ``main``."""
    words, parameters = [program], inspect.signature(main).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [shlex.quote(str(value))])]
    return " ".join(words)


def write_bytes(path: Path, contents: bytes | memoryview) -> None:
    """Write a file completely or not at all; OSError names it.

    The temporary file beside it has a random name and must not exist (O_EXCL), so nobody can plant a link there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record; None stands for numbers that JSON does not have (nan, inf)."""
    write_text(path, json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a record, None if there is no such file; OSError names a file that is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is damaged ({error}); remove it to start again") from error
    if not isinstance(found, dict):
        raise OSError(f"{path} is not a record of o2nc; choose another --out")
    return found


class Store:
    """Finished runs in one JSON file, by name: a run that is there need not be repeated.

    Args:
        path: the file, written again after every run.
        settings: what all runs share; a file with other settings is refused with a `UsageError`.
        about: the `circumstances`, written with the runs.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.path, self.settings, self.about = path, _finite(settings), about
        record = read_json(path) or {}
        self.runs: dict[str, Any] = record.get("runs", {})
        if record and record.get("settings") != self.settings:
            there, here = record.get("settings") or {}, self.settings
            differ = [key for key in here if there.get(key) != here[key]] or [key for key in there if key not in here]
            texts = [", ".join(f"{key} {values.get(key)}" for key in differ) for values in (there, here)]
            raise UsageError(f"{path} has runs with {texts[0]}, not {texts[1]}; choose another --out")

    def add(self, name: str, run: Any) -> None:
        """Add a finished run and write the file."""
        self.runs[name] = run
        self.write()

    def write(self, **more: Any) -> None:
        """Write the file, with more entries beside the runs."""
        write_json(self.path, {"circumstances": self.about, "settings": self.settings, "runs": self.runs, **more})


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write what a run needs to go on (``torch.save``); the previous checkpoint stays if that fails."""
    import torch

    contents = BytesIO()
    torch.save(state, contents)
    write_bytes(path, contents.getbuffer())
    for leftover in path.parent.glob(f".{path.name}.*.part"):  # of a process that was killed while writing
        leftover.unlink(missing_ok=True)


def load_checkpoint(path: Path, device: "torch.device") -> dict[str, Any] | None:
    """Return the checkpoint of a run, None if there is none; OSError names a file that is damaged."""
    import torch

    if not path.exists():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path} is damaged ({type(error).__name__}); remove it to start the run again") from error
    return found


# ---- tables and the terminal ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of text under a head. Columns of numbers are aligned at the right, and their cells are never cut."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: str = ""  # a line is a paragraph below the table

    def is_number(self, column: int) -> bool:
        """Return whether at least half of a column's cells are numbers."""
        cells = [row[column] for row in self.rows if row[column] not in ("", NONE)]
        return 2 * sum(bool(re.match(r"[+−\-<>≤≥≈×~(]?\s?\.?\d", cell)) for cell in cells) >= max(1, len(cells))

    def markdown(self) -> str:
        """Return the table as Markdown, its title above and its notes below."""
        rule = "|".join("--:" if self.is_number(i) else "---" for i in range(len(self.head)))
        escaped = ([cell.replace("|", "\\|") for cell in row] for row in (self.head, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in escaped]
        table = "\n".join([lines[0], f"|{rule}|", *lines[1:]])
        return "\n\n".join(filter(None, [f"**{self.title}**" if self.title else "", table, self.notes]))


def mean_std(values: Sequence[float], digits: int = 3) -> str:
    """Return "mean ± standard deviation".

    Example:
        >>> mean_std([1.0, 1.5]), mean_std([2.0]), mean_std([1.0, float("nan")])
        ('1.250 ± 0.354', '2.000', 'diverged')
    """
    if not values:
        return NONE
    if not all(map(math.isfinite, values)):
        return "diverged"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


class Terminal:
    """Standard output: text, tables and progress bars by rich, plain Markdown where rich is not installed."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.is_interactive = sys.stdout is not None and sys.stdout.isatty()

    def say(self, text: str = "") -> None:
        """Print a line as it is."""
        if not self.quiet:
            print(text, flush=True)

    def table(self, table: Table) -> None:
        """Print a table; where the terminal is too narrow, words are broken into lines and numbers are not."""
        if self.quiet:
            return
        try:
            from rich import box
            from rich.console import Console
            from rich.table import Table as Rich
        except ImportError:
            self.say(f"\n{table.markdown()}\n")
            return
        drawn = Rich(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
        least = 0
        for i, name in enumerate(table.head):
            number, cells = table.is_number(i), [name, *(row[i] for row in table.rows)]
            drawn.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
            least += 3 + (max(map(len, cells)) if number else min(16, max(map(len, cells))))
        for row in table.rows:
            drawn.add_row(*(cell.replace("[", r"\[") for cell in row))
        width = Console().width if self.is_interactive else WIDTH
        Console(highlight=False, width=max(width, least)).print(drawn)
        if table.notes:
            print(f"{table.notes}\n", flush=True)

    @contextmanager
    def progress(self, total: float, words: str) -> Iterator[Callable[[float, str], None]]:
        """Show a progress bar on a terminal; call what it yields with the amount done and new words, or ""."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        except ImportError:
            yield lambda amount, text: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"))
        hidden = self.quiet or not self.is_interactive
        with Progress(*columns, TimeRemainingColumn(), console=Console(), transient=True, disable=hidden) as bar:
            task = bar.add_task(words, total=total)
            yield lambda amount, text: bar.update(task, advance=amount, description=text or None)


# ---- pictures and the page -----------------------------------------------------------------------------------------


def new_figure(width: float = 7.0, height: float = 4.2) -> "Figure":
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def style_panel(axes: "Axes", title: str = "", x: str = "", y: str = "") -> None:
    """Give a panel its title and its one pair of labelled axes, with a faint grid and no frame above and right."""
    axes.set_title(title, fontsize=11)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def horizon_axis(axes: "Axes", horizons: Sequence[int]) -> None:
    """Make the x-axis logarithmic, with a tick at every horizon that has room."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    shown = [a for a, b in pairwise(horizons) if b / a > 1.15] + [horizons[-1]]
    axes.set_xticks(shown, [f"{horizon:,}" for horizon in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_means(axes: "Axes", points: Mapping[int, Sequence[float]], style: Mapping[str, Any]) -> None:
    """Draw means over seeds at every x, with bars of one standard deviation; the colour is a word of COLOURS."""
    own = {x: values for x, values in points.items() if values and all(map(math.isfinite, values))}
    errors = [stdev(values) if len(values) > 1 else 0.0 for values in own.values()]
    named = {**style, "color": COLOURS[style["color"]]}
    bars: dict[str, Any] = {"yerr": errors, "capsize": 2, "elinewidth": 0.8} if any(errors) else {}
    axes.errorbar(list(own), [*map(fmean, own.values())], **bars, **named)


def draw(figure: "Figure", kind: str) -> bytes:
    """Return a figure as the contents of a file, "png" or "svg"; the same bytes for the same numbers."""
    import matplotlib

    drawn = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "o2nc"}):
        figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return drawn.getvalue()


@dataclass(frozen=True)
class Section:
    """Part of a page: words, then lines to copy, pictures with their captions, tables."""

    title: str
    text: str = ""  # a line is a paragraph
    pictures: Sequence[tuple["Figure", str]] = ()
    tables: Sequence[Table] = ()
    code: str = ""


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], about: Mapping[str, Any]) -> None:
    """Write one HTML page that needs no other file and no script; ``about`` are the `circumstances`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def address(figure: "Figure") -> str:
        return f"data:image/svg+xml;base64,{b64encode(draw(figure, 'svg')).decode()}"

    environment = Environment(
        loader=PackageLoader("o2nc_experiments"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["address"] = address
    template = environment.get_template("page.html")
    write_text(path, template.render(title=title, lead=lead, sections=sections, about=about))
