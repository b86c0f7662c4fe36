"""How Sphinx builds the site: Markdown pages, and a reference from the docstrings."""

import inspect
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

import o2nc

project = "o2nc"
author = "The authors of o2nc"
release = version = o2nc.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["results/verify.md"]  # a bare table; checks.md includes it

myst_heading_anchors = 3  # links such as recipes.md#clipping, as on GitHub
highlight_language = "none"  # blocks that name no language are formulas and trees

default_role = "py:obj"  # `OGD` in a docstring is a link where it can be one
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_mock_imports = ["lightning", "transformers"]  # the site does without them
napoleon_use_ivar = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "o2nc"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["wide.css"]


def keep_formulas(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Read a docstring's formulas as they are meant: an indented paragraph stands as it is, and |x| is a size."""
    result: list[str] = []
    margin, literal = "", False  # the last line at the margin; whether the lines are those of a formula
    for line in lines:
        if line and not line.startswith(" "):
            margin, literal = line, False
        elif line.startswith("    ") and not result[-1] and not literal:
            literal = not margin.startswith((":", "..", "* ", ">>>"))
            if literal and not margin.endswith("::"):
                result += ["::", ""]
        result.append(line if literal or margin.startswith(">>>") else line.replace("|", r"\|"))
    lines[:] = result


def sign(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """Show the arguments of __init__ where a __new__ hides them from Sphinx, and no private ones."""
    if what != "class" or not signature:
        return None
    shown = inspect.signature(obj)
    public = [argument for key, argument in shown.parameters.items() if not key.startswith("_")]
    shown = shown.replace(parameters=public)
    return stringify_signature(shown, show_annotation=False, show_return_annotation=False), returns


def find(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """Let `OGD` in a docstring be a link from every module, not only from its own."""
    if node.get("reftype") != "obj":
        return None
    node["refspecific"] = True  # by the end of its name
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", node["reftarget"], node, content
    )


def setup(app: Sphinx) -> None:
    """Connect what is above, the docstrings after napoleon."""
    app.connect("autodoc-process-signature", sign)
    app.connect("missing-reference", find)
    app.connect("autodoc-process-docstring", keep_formulas, priority=900)
