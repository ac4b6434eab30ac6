"""Choose the candidates of a fit, and the weights of their mixture, by validation."""
