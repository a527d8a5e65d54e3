"""The command line, `h5store` and ``python -m h5store``: one module for each group of commands."""
