"""Bytes: where chunks lie, how they are read, checked, decoded, journalled and sealed."""
