"""What a watched run shows while it lasts, made from its logs by the process that has started it."""
