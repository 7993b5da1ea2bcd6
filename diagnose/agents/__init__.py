"""What language models get of diagnoses: bounded answers with handles to more, as tools of a server over stdio."""
