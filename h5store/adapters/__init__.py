"""Doors to the trainers. Each imports its library only when it is used, and decides nothing of its own."""
