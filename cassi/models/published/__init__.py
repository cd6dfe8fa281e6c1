"""Networks that others have published, one a file, with the parts that only they use."""
