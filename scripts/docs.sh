#!/bin/sh
# Builds the documentation into build/docs; a warning is an error.

. "$(dirname "$0")/env.sh"

if ! "$venv/bin/python" -c 'import myst_parser, numpydoc, sphinx' 2>/dev/null; then
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable '.[docs]'
fi
"$venv/bin/python" -m sphinx -W --keep-going -q -b html docs build/docs "$@"
echo "build/docs/index.html"
