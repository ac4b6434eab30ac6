"""Pinned behaviour: public names, reports, stores, model files and checkpoints.

`tests.frozen.write` wrote the files here, and says which of them may be written again.
"""
