#!/bin/sh
# Packs scikit-learn's handwritten digits, trains a small Keras model on them, and fails below 95 %.

. "$(dirname "$0")/env.sh"

exec "$venv/bin/python" scripts/demo.py
