"""Sphinx settings of the documentation site. `make docs` builds it from docs/ without a network, into build/site."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import gyroscope

project, author = "Gyroscope", "the Gyroscope developers"
copyright = author
release = version = gyroscope.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**/*.ipynb", "**/.ipynb_checkpoints"]
smartquotes = False  # "--rule" must stay "--rule"
default_role = "code"  # docstrings have `single` backticks
highlight_language = "none"
myst_heading_anchors = 4  # as GitHub makes them

autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "separated"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

html_theme = "furo"
html_favicon = "assets/favicon.svg"
html_title = f"Gyroscope {release}"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_copy_source = html_use_index = html_domain_indices = False
html_show_copyright = False

CHANGELOG = "reference/changelog"
BIG = 12
"""Rows from which on a table can be sorted and filtered and has a CSV file."""
LONG = 40
"""Letters from which on a cell of a table has a least width, lest it become a tower of single words."""


def prefer_vectors(app: Sphinx, doctree: nodes.document) -> None:
    """Show the SVG of a figure where it stands beside the PNG that GitHub shows."""
    folder = Path(app.env.doc2path(app.env.docname)).parent
    for image in doctree.findall(nodes.image):
        vector = Path(image["uri"]).with_suffix(".svg")
        if (folder / vector).is_file():
            image["uri"] = str(vector)


def dash_parameters(app: Sphinx, doctree: nodes.document) -> None:
    """Put a dash between a parameter and its description, where Sphinx relies on its smart quotes."""
    for text in list(doctree.findall(lambda node: isinstance(node, nodes.Text) and node == " -- ")):
        text.parent.replace(text, nodes.Text(" – "))


def write_tables(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Write each big table as CSV, with a link above the table; tables.js adds a filter beside the link."""
    if app.builder.format != "html":
        return
    for entry in doctree.findall(nodes.entry):
        if len(entry.astext()) > LONG:
            entry["classes"].append("long")
    tables = [table for table in doctree.findall(nodes.table) if len(list(table.findall(nodes.row))) > BIG]
    for number, table in enumerate(tables, 1):
        name = f"_tables/{docname.replace('/', '-')}-{number}.csv"
        path = Path(app.outdir) / name
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([cell.astext() for cell in row] for row in table.findall(nodes.row))
        link = f'<a href="{"../" * docname.count("/")}{name}" download>CSV</a>'
        box = table.parent if "table-wrapper" in table.parent.get("classes", []) else table
        box.parent.insert(box.parent.index(box), nodes.raw("", f'<div class="table-tools">{link}</div>', format="html"))


def adapt_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make a page of CHANGELOG.md, and plain text of links to the repository's folders and other pages."""
    page = Path(app.srcdir) / f"{docname}.md"
    root = Path(app.srcdir).parent
    if docname == CHANGELOG:
        text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
        source[0] = text.replace("](docs/", "](../").replace("](examples/", "](../../examples/")

    def adapted(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if target == root / "CHANGELOG.md":
            return f"[{link[1]}]({'../' * docname.count('/')}{CHANGELOG}.md)"
        outside = target.is_dir() or (target.suffix == ".md" and Path(app.srcdir) not in target.parents)
        return link[1] if outside else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)", adapted, source[0])


def describe_fields(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Add the help texts of a configuration's fields, which the command line shows, too."""
    if what == "class" and name == "gyroscope.Config":
        fields = dataclasses.fields(thing)
        lines += ["", "Args:", *(f"    {field.name}: {field.metadata['help']}." for field in fields), ""]


def as_restructured_text(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn the plain text of a docstring into reStructuredText: `code` stays code, and | * _ are letters."""
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            parts = re.split(r"(`[^`]+`|\*\*.+?\*\*)", line)
            parts[::2] = [re.sub(r"([|*\\]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
            parts[1::2] = [re.sub(r"^`(.+)`$", r"``\1``", part) for part in parts[1::2]]
            lines[number] = "".join(parts)


def show_titles(app: Sphinx, name: str, source: list[str]) -> None:
    """Make the title of a code block, which is the name of its file, the caption of the block."""
    titled = re.compile(r'^```(\w+) title="([^"]+)"$', re.MULTILINE)
    source[0] = titled.sub(r"```{code-block} \1\n:caption: \2\n", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", adapt_links)
    app.connect("source-read", show_titles)
    app.connect("doctree-read", prefer_vectors, priority=400)  # before Sphinx collects the images, at 500
    app.connect("doctree-read", dash_parameters)
    app.connect("doctree-resolved", write_tables)
    app.connect("autodoc-process-docstring", describe_fields, priority=300)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon, at 500
