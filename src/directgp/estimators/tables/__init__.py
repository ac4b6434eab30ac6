"""From a user's table to training data: checks, scaling, canonical order."""
