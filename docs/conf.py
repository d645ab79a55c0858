"""The site, made of the repository's pages as they are: `sphinx-build -c docs . site`."""

import inspect
import pathlib
import re
import shutil
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from sphinx.util.inspect import stringify_signature  # noqa: E402

import albert  # noqa: E402

project, release = "albert", albert.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme, html_title, html_show_copyright = "furo", f"albert {release}", False
root_doc = "README"
include_patterns = ["*.md", "docs/**", "albert/models/*/README.md"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "off"  # their outputs are in the files
# Docstrings are Markdown with Google's sections: one pair of backticks is code.
default_role = "code"
napoleon_custom_sections = ["Returns"]  # without a type before a colon
autodoc_member_order = "bysource"
maximum_signature_line_length = 100

# What a reader needs first; the other pages follow by name.
FIRST = {
    "start": ["first_classifier", "own_language"],
    "guides": ["which_model", "tables", "tune_classifier", "tasks", "embeddings", "serve", "teacher",
               "pretrain"],
    "reference": ["commands", "python"],
    "evidence": ["results", "performance", "fidelity", "reliability"],
}
CONTENTS = """
```{toctree}
:hidden:
:glob:
:caption: %s

%s
```
"""


def add_contents(app, page, source):
    """Adds the side bar to the first page, where GitHub would show its markup."""
    if page == root_doc:
        for folder in ("start", "guides", "reference", "notebooks", "evidence"):
            title = "How to" if folder == "guides" else folder.title()
            names = [*FIRST.get(folder, []), "*"]
            source[0] += CONTENTS % (title, "\n".join(f"docs/{folder}/{name}" for name in names))
        source[0] += CONTENTS % ("Project", "CONTRIBUTING\nCHANGELOG\nalbert/models/*/README")


def show_own_arguments(app, what, name, item, options, arguments, result):
    """Replaces the arguments of Keras's `__new__` by those of the class."""
    if arguments == "(*args, **kwargs)":
        text = stringify_signature(inspect.signature(item), show_annotation=False)
        return re.sub(r"EncoderOptions\(.*?\)", "EncoderOptions()", text), result


def make_front_page(app, error):
    if not error and app.builder.format == "html":
        shutil.copy(pathlib.Path(app.outdir, "README.html"), pathlib.Path(app.outdir, "index.html"))


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", show_own_arguments)
    app.connect("build-finished", make_front_page)
