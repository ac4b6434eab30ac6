"""The report of the reproduction: page, figures and documents."""
