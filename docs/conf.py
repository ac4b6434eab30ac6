"""Sphinx configuration; `make docs` builds the documentation."""

import re
import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

project = "directgp"
author = "the directgp authors"
copyright = author
release = installed_version("directgp")
version = release

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
# The tables are included in pages.
exclude_patterns = ["_build", "tables", "paper/tables"]

# A name in single backquotes is a link if it is known, and code otherwise.
default_role = "py:obj"
myst_heading_anchors = 2
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]

# The code cells of pages run during the build; the tests run the same code.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "special-members": "__call__"}
# An overriding method is described in its base class.
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"directgp {release}"
html_copy_source = False
# Code that is copied from a page must run.
smartquotes = False


HERE = Path(__file__).parent


def copy_paper_pages(app: Sphinx) -> None:
    """Copy the pages of directgp_paper into docs/paper: Sphinx reads one folder."""
    shutil.rmtree(HERE / "paper", ignore_errors=True)
    shutil.copytree(HERE.parent / "paper" / "docs", HERE / "paper")


def join_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Change links between docs/ and paper/docs/, which are as in the repository."""
    if page.startswith("paper/"):
        source[0] = source[0].replace("](../../docs/", "](../")
    else:
        source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./paper/docs/", r"](\1paper/", source[0])


def drop_module_arguments(*event: object) -> tuple[str, object] | None:
    """Remove the arguments that a class without parameters inherits from `torch.nn.Module`."""
    signature, returns = event[-2:]
    return ("()", returns) if str(signature).startswith("(*args") else None


def skip_requests(*event: object) -> bool | None:
    """Skip `set_fit_request` and similar methods, which scikit-learn generates and documents."""
    name = str(event[2])
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> None:
    """Register the functions above with Sphinx."""
    app.connect("builder-inited", copy_paper_pages)
    app.connect("source-read", join_pages)
    app.connect("autodoc-process-signature", drop_module_arguments)
    app.connect("autodoc-skip-member", skip_requests)
