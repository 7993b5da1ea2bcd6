"""What the host does: dispatch, Python, waiting, loops, compiling, threads."""
