"""What can be changed of a training, one definition each: a class for a kind of setting, with all that is known of it.

A kind says which values it takes, in which words and code it is told, whether a run has it already, how it is set in a
running script and what shows that this took effect, how the user's files are edited for it, and what it does to
results. A new kind is a class in a file of its own or beside its like, named in `catalogue.KINDS`. The recorder's agent
loads this package by itself, so at run time it imports the standard library only.
"""
