"""The reports of `compare` and `reproduce`: HTML pages, figures, and files for programs."""

from directgp.errors import require_extra

require_extra("directgp.reports", "cli", "jinja2", "matplotlib", "pyarrow")
