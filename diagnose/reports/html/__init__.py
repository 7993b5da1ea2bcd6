"""A Diagnosis as one page that needs nothing else, and its figures."""
