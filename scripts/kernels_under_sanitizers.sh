#!/usr/bin/env bash
# Builds the C++ kernels with address and undefined-behaviour sanitizers in a copy and drives them over odd sizes.
# Ends with an error at the first read or write outside of what belongs to a kernel. usage: scripts/kernels_under_sanitizers.sh [python]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/src" && cp -r src/dasmil "$place/src/" && rm -f "$place"/src/dasmil/ops/*/_kernel*
flags="-g -O1 -std=c++17 -fPIC -fopenmp -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
flags="$flags -fno-sanitize=vptr,float-divide-by-zero -fvisibility=hidden -ffp-contract=fast -Wno-psabi"
for room in das_attention conv_pool; do
  kernel="$place/src/dasmil/ops/$room/kernel"
  objects=("$place/portable.o" "$place/dispatch.o")
  special=""
  if [ "$(uname -m)" = x86_64 ]; then
    special=-DDAS_WITH_AVX2
    objects+=("$place/avx2.o")
    g++ $flags -mavx2 -mfma -c "$kernel/avx2.cpp" -o "$place/avx2.o" &
    if [ -e "$kernel/avx512.cpp" ]; then
      special="$special -DDAS_WITH_AVX512"
      objects+=("$place/avx512.o")
      g++ $flags -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -c "$kernel/avx512.cpp" -o "$place/avx512.o" &
    fi
  fi
  g++ $flags -c "$kernel/portable.cpp" -o "$place/portable.o"
  g++ $flags $special -c "$kernel/dispatch.cpp" -o "$place/dispatch.o"
  wait
  g++ -shared -fopenmp -fsanitize=address,undefined "${objects[@]}" -o "$place/src/dasmil/ops/$room/_kernel.so"
done
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0,detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2 \
  PYTHONPATH="$place/src" PYTHONDONTWRITEBYTECODE=1 "$python" scripts/drive_kernels.py "$place"
