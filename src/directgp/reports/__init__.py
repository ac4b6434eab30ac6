"""The report of a comparison: a page for people, pictures for slides, files for machines."""
