"""Real jobs of several ranks with a planted fault: what its fix gains, and what diagnose says."""
