"""How often `diagnose compare` calls noise a difference, and which slowdowns it sees."""
