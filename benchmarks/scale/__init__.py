"""What very many ranks take: the map of all of them, and the reduction to one diagnosis."""
