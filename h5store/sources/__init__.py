"""Anything people have, as blocks of samples with a schema."""
