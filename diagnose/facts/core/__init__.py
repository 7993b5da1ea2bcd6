"""What all other facts stand on: steps, device work, host threads, ops with their inputs, idle time and its causes."""
