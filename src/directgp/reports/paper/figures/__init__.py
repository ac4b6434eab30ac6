"""The paper's figures, drawn from results."""
