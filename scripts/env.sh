# Read in by test.sh and demo.sh: goes to the top of the checkout and makes .venv there, or reuses it.
#
#   PYTHON      the interpreter that makes the environment (default python3)
#   H5STORE_WITH  further requirements for pip, for example "torch==2.13.0"

set -eu
cd "$(dirname "$0")/.."

venv=.venv
# What was installed, as a text: when it no longer matches, pip runs again and changes what changed.
wanted="$(cat setup.cfg setup.py pyproject.toml h5store/storage/kernel.c | cksum) ${H5STORE_WITH:-}"

if [ ! -x "$venv/bin/python" ]; then
    echo "making the environment $venv"
    "${PYTHON:-python3}" -m venv "$venv"
fi
if [ "$(cat "$venv/h5store-stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "installing h5store and what its tests and demo need (some minutes the first time)"
    # shellcheck disable=SC2086  # several requirements, parted by spaces
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable '.[dev]' ${H5STORE_WITH:-}
    # Where PYTHONDONTWRITEBYTECODE is set, every import would compile the package anew.
    "$venv/bin/python" -m compileall -q h5store
    printf '%s\n' "$wanted" > "$venv/h5store-stamp"
fi

# TensorFlow tells of CPU features and missing GPUs at every start; only its errors matter here.
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
# Results that do not change with the processor's rounding order.
export TF_ENABLE_ONEDNN_OPTS="${TF_ENABLE_ONEDNN_OPTS:-0}"
