"""The reports of `compare` and `reproduce`: HTML pages, figures, and files for programs."""
