"""Files of the package that pages are made of."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from directgp.reports.figures.rendering import address, dimensions


def template(name: str) -> Template:
    """A page with holes; whatever fills them is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(file_text),
    )
    environment.globals.update(address=address, dimensions=dimensions)
    return environment.get_template(name)


def file_text(name: str) -> str:
    """Of a template, style or script."""
    return files("directgp.reports").joinpath("templates", name).read_text(encoding="utf-8")


def inline(name: str) -> Markup:
    """A style or a script, put into a page as it is: a file of the package, no text of users."""
    return Markup(file_text(name))  # nosec


def digest(script: str) -> str:
    """By which a page allows this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
