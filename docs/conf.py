"""Settings of the documentation, which `make docs` builds."""

from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "directgp"
author = "the directgp authors"
copyright = author
release = installed_version("directgp")
version = release

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
# Tables are parts of pages.
exclude_patterns = ["_build", "tables"]

# A name in single backquotes is a link where it is known, and code where it is not.
default_role = "py:obj"
myst_heading_anchors = 2
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]

# Pages with pictures are made of code that runs as they are built, the same that the tests run.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "special-members": "__call__"}
# A method that only fills in one of its base class is described there.
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"directgp {release}"
html_copy_source = False
# What is copied from a page must run.
smartquotes = False


def drop_module_arguments(*event: object) -> tuple[str, object] | None:
    """Leave out the arguments that a class without parameters has from `torch.nn.Module`."""
    signature, returns = event[-2:]
    return ("()", returns) if str(signature).startswith("(*args") else None


def skip_requests(*event: object) -> bool | None:
    """Leave out `set_fit_request` and its like, which scikit-learn writes and describes."""
    name = str(event[2])
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> None:
    """Tell Sphinx of the functions above."""
    app.connect("autodoc-process-signature", drop_module_arguments)
    app.connect("autodoc-skip-member", skip_requests)
