"""What must stay as it is: public names, reports, stores, model files and checkpoints.

`tests.frozen.write` wrote the files here, and says which of them may be written again.
"""
