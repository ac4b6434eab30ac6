"""The pictures of a report, one file each, in colours that can be exchanged for dark ones."""
