"""What a page draws of a rank: marks in lanes, samples of single operations, and where findings lie among them.

It is made of the tables themselves, where they are: they do not travel between processes, and a Diagnosis does.
"""
