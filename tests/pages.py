"""The pages of the documentation, and what is in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
}


def blocks(text, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def sections(page):
    """Return what stands before a page's first section, and the sections by their headings."""
    opening, *others = re.split(r"^## ", PAGES[page], flags=re.MULTILINE)
    return opening, dict(section.split("\n", 1) for section in others)


def anchor(heading):
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
