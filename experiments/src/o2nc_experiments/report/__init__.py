"""Results as one page of HTML that needs nothing else: ``report.html``.

Every command keeps its results as a record (`o2nc_experiments.record`): a JSON file with its circumstances. It tells
its `Story` (`stories`): sections of words, tables and pictures. `page` turns stories into HTML, and `write` puts the
page beside the records. Pictures are drawn again from the numbers, so any record can be shown at any time.
"""

from o2nc_experiments.report.files import NAME, find, write
from o2nc_experiments.report.page import page
from o2nc_experiments.report.story import Picture, Section, Story

__all__ = ["NAME", "Picture", "Section", "Story", "find", "page", "write"]
