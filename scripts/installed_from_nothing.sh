#!/usr/bin/env bash
# Installs the wheel and the sdist of a folder (scripts/build_wheel.sh makes them) into empty environments, each away
# from the sources, and there runs the kernels' parity set and `dasmil demo --quick`.
# usage: scripts/installed_from_nothing.sh [folder = dist] [python for the wheel = python3] [python for the sdist]
set -euo pipefail
cd "$(dirname "$0")/.."
sources=$PWD
dist=$(cd "${1:-dist}" && pwd)
python=${2:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/tests" && cp -r tests/ops "$place/tests/ops"
prove() { # what, file, python
  echo "== $1 $(basename "$2") with $("$3" --version)"
  "$3" -m venv "$place/$1"
  bin=$place/$1/bin
  "$bin/pip" install -q -c "$sources/constraints.txt" "$2" pytest
  cd "$place"
  "$bin/dasmil" --version --verbose
  "$bin/python" -c "import sys, dasmil; from dasmil.ops import conv_pool; from dasmil.ops.das_attention.native import told
assert dasmil.__file__.startswith(sys.prefix), dasmil.__file__
assert not told().startswith('missing') and conv_pool.load() is not None, told()"
  "$bin/python" -m pytest -q -p no:cacheprovider --import-mode=importlib tests/ops/test_backends.py \
    tests/ops/test_distance.py tests/ops/test_dropout.py tests/ops/test_saturated.py tests/ops/test_conv_pool.py \
    tests/ops/test_inputs.py -k "not triton and not bench" | tail -3
  "$bin/dasmil" demo --quick --out "$place/demo-$1"
  rm -rf "$place/$1"
}
prove wheel "$dist"/dasmil-*.whl "$python"
prove sdist "$dist"/dasmil-*.tar.gz "${3:-$python}"
