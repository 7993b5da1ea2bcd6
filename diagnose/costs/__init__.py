"""What a changed op takes: composed of all changes that reach it, priced once."""
