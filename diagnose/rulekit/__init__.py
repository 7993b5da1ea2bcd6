"""What a rule is made of, and what runs it: vocabulary, page, settings, engine, and what several rules say alike."""
