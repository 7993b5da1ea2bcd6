"""A Diagnosis as text. No arithmetic beyond formatting."""
