"""``python -m h5store`` is the command `h5store`."""

from h5store.cli.main import main

if __name__ == "__main__":
    main()
