"""Mathematics independent of Gaussian processes: special functions, linear algebra, draws."""
