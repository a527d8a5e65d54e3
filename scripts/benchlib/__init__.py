"""The parts of scripts/bench.py, one module a concern; nothing here is imported by the package."""
