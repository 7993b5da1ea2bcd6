"""What can be measured in the log of a watched run, for rules on whole runs."""
