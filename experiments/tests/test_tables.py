"""Tables in a terminal: no number is ever cut."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from o2nc_experiments.cifar10 import horizons
from o2nc_experiments.console import WIDTH
from o2nc_experiments.nonsmooth import tables as nonsmooth
from o2nc_experiments.nonsmooth import view
from o2nc_experiments.tables import NONE, Column, Table

RESULTS = Path(__file__).parents[2] / "docs" / "results"
WIDTHS = [80, 100, WIDTH]


def shown(table, width):
    """Return the lines that a terminal shows, none of them too long and nothing cut."""
    console = Console(width=width, file=StringIO(), color_system=None, highlight=False)
    console.print(table)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(cell_len, lines)) <= width
    assert "…" not in console.file.getvalue()
    return lines


def heads(lines):
    """Return the names of the columns in every block, but that of the first, which may be broken."""
    rules = (i for i, line in enumerate(lines) if set(line.strip()) == {"─"})
    return [re.split(r"\s{2,}", lines[i - 1].strip())[1:] for i in rules]


def by_horizon(*numbers, name="sgdm:constant~gamma(16)+t^12, last"):
    """Return a table as o2nc cifar10 prints it."""
    table = Table([Column("after so many epochs", "left"), Column("lr", "left"), *numbers], notes="in %")
    table.add_heading("one run, read off at every horizon")
    table.add(name, "0.05", *(f"93.{i:02} ± 0.{i:02}" for i, _ in enumerate(numbers)))
    table.add("sgdm:cosine, last", "0.01 to 0.1", *(f"92.{i:02} ± 0.{i:02}" for i, _ in enumerate(numbers)))
    return table


def values(count):
    return [f"{whole}.{i:02} ± 0.{i:02}" for whole in (93, 92) for i in range(count)]


@pytest.mark.parametrize("width", [40, 60, *WIDTHS, 119, 200])
@pytest.mark.parametrize("count", [1, 5, 13])
def test_every_number_is_whole(width, count):
    table = by_horizon(*(str(10 * 2**i) for i in range(count)))
    lines = shown(table, width)
    text = "\n".join(lines)
    for value in values(count):
        assert text.count(value) == 1, value
    found = [name for block in heads(lines) for name in block]
    assert found == [column.name for column in table.columns[1:]]
    assert text.count("in %") == 1
    assert lines[-1] == "in %"


def test_a_table_that_fits_is_one_block():
    table = by_horizon("10", "20", "40", "80", "200")
    assert len(heads(shown(table, 119))) == 1
    assert " sgdm:constant~gamma(16)+t^12, last  0.05   " in "\n".join(shown(table, 119))


def test_names_are_broken_before_the_table_is():
    table = by_horizon("10", "20", "40", "80", "200")
    lines = shown(table, 118)
    assert len(heads(lines)) == 1
    at = next(i for i, line in enumerate(lines) if "93.04 ± 0.04" in line)
    assert lines[at].startswith(" sgdm:constant~gamma(16)+t^12,    ")
    assert lines[at + 1] == " last"


def test_blocks_have_the_names_and_the_headings():
    table = by_horizon("10", "20", "40", "80", "200")
    lines = shown(table, 80)
    assert heads(lines) == [["lr", "10", "20", "40"], ["80", "200"]]
    assert sum(line.startswith(" sgdm:cosine, last ") for line in lines) == 2
    assert sum(line.startswith(" one run, read off at") for line in lines) == 2


def test_the_title_is_above_the_first_block_and_every_rule_in_all():
    table = Table([Column("name", "left"), *(f"column {i}" for i in range(9))], "A title", "A note")
    table.add("a", *"123456789", ruled=True)
    table.add("b", *"123456789")
    lines = shown(table, 60)
    assert len(heads(lines)) == 2
    assert [i for i, line in enumerate(lines) if "A title" in line] == [0]
    assert [i for i, line in enumerate(lines) if "A note" in line] == [len(lines) - 1]
    rows = [i for i, line in enumerate(lines) if line.startswith(" a ")]
    assert len(rows) == 2
    for i in rows:
        assert not lines[i + 1].strip()
        assert lines[i + 2].startswith(" b ")


def test_rows_are_named_by_all_columns_up_to_the_first_of_text():
    table = Table(["d", Column("method", "left"), *(f"column {i}" for i in range(9))])
    table.add("1", "scaled", *"123456789")
    assert [block[0] for block in heads(shown(table, 60))] == ["method"] * 3


@pytest.mark.parametrize("title", ["", "A title"])
def test_where_not_even_one_column_fits_it_is_a_list(title):
    table = by_horizon("10", "20")
    table.title = title
    table.add("sgdm", NONE, NONE, "91.00 ± 0.00")
    lines = shown(table, 30)
    assert lines[0] == (title or "one run, read off at every")
    assert lines[-3:] == ["sgdm", "  20: 91.00 ± 0.00", "in %"]
    assert "  10: 93.00 ± 0.00" in lines


def cells(table):
    """Return all cells of the columns that are numbers."""
    numeric = [i for i, column in enumerate(table.columns) if column.align == "right"]
    return [line.cells[i].text for line in table.lines if not line.heading for i in numeric]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tables_of_the_documents(width):
    record = json.loads((RESULTS / "cifar10_horizons.json").read_text(encoding="utf-8"))
    found, escapes, _ = view.load(json.loads((RESULTS / "nonsmooth.json").read_text(encoding="utf-8")))
    tables = [*horizons.tables(record), nonsmooth.costs(found), nonsmooth.horizons(found), nonsmooth.traps(escapes)]
    for table in tables:
        text = "\n".join(shown(table, width))
        for cell in cells(table):
            assert re.search(rf"(^|\s){re.escape(cell)}($|\s)", text, re.MULTILINE), cell
