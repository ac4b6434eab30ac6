"""Training: to the optimum of an objective, with a reason for stopping."""
