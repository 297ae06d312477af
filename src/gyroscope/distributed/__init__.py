"""Training with real processes: a parameter server whose workers may die, hang, or lie."""
