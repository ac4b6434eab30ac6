"""Maths that knows nothing of Gaussian processes: special functions, factors, densities, draws."""
