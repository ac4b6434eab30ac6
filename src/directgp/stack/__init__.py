"""Features for a GP: out-of-fold predictions of other models."""
