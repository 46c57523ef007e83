#!/usr/bin/env bash
# Compiles both C++ kernels for aarch64 and runs their parity set (tests/ops) with every call of a kernel executed as
# aarch64 code by qemu-user: same sources, same flags as setup.py, NEON by the compiler. torch itself stays on this CPU.
# Needs: apt-get install g++-aarch64-linux-gnu qemu-user. usage: scripts/aarch64/kernels_on_aarch64.sh [python]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
flags=$("$python" -c 'import ast; tree = ast.parse(open("setup.py").read())
for node in tree.body:
    if isinstance(node, (ast.Assign, ast.AugAssign)) and "FLAGS" in ast.unparse(node).split("=")[0]: print(*ast.literal_eval(node.value))')
objects=()
for room in das_attention conv_pool; do
  for part in portable dispatch; do
    aarch64-linux-gnu-g++ $flags -fopenmp -c "src/dasmil/ops/$room/kernel/$part.cpp" -o "$place/$room-$part.o"
    objects+=("$place/$room-$part.o")
  done
done
aarch64-linux-gnu-g++ -O1 -std=c++17 -fopenmp scripts/aarch64/kernel_server.cpp "${objects[@]}" -o "$place/server"
neon=$(aarch64-linux-gnu-objdump -d "$place"/*-portable.o | grep -cE '\b(fmla|fmul|fadd|fmax|fdiv|fsqrt)\s+v[0-9]+\.4s' || true)
[ "$neon" -gt 0 ] || { echo "no NEON instructions were found in the kernels"; exit 1; }
KERNEL_SERVER="qemu-aarch64 -L /usr/aarch64-linux-gnu $place/server" KERNEL_CALLS="$place/calls" PYTHONPATH=scripts/aarch64 \
  "$python" -m pytest -q -p remote_kernels -n 2 tests/ops/test_backends.py tests/ops/test_conv_pool.py \
  tests/ops/test_distance.py tests/ops/test_dropout.py tests/ops/test_inputs.py tests/ops/test_positions.py \
  tests/ops/test_saturated.py -k "not triton and not chunked and not bench and not without_compiler and not cannot_be_loaded"
calls=$(awk '{ sum += $1 } END { print sum + 0 }' "$place/calls")
[ "$calls" -gt 0 ] || { echo "no call reached the aarch64 kernels"; exit 1; }
echo "$calls kernel calls ran as aarch64 code ($neon NEON instructions on four floats) in $(qemu-aarch64 --version | head -1)"
