"""Reports of experiments: HTML pages, figures, and files for programs."""

from directgp.errors import require_extra

require_extra("directgp.reports", "cli", "jinja2", "matplotlib", "pyarrow")

from directgp.reports.html import damaged_sentence, render_page, write_files

__all__ = ["damaged_sentence", "render_page", "write_files"]
