#!/usr/bin/env bash
# Builds the wheel flp-packs, with the pack for an H200, by the flpgen of build.sh. Minutes of CPU; ptxas is needed
# (FLP_PTXAS, or in PATH). The pack is made anew where generator, list or ptxas changed.
# usage: packaging/wheel/packs.sh [amd64|arm64]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly base=$PWD/build/wheel
readonly target=$base/${1:-$(dpkg --print-architecture)}
readonly flpgen=$target/build/bin/flpgen
readonly list=autotune/presets/h200.list
readonly package=$base/packs
readonly pack=$base/h200.flpp

export FLP_PTXAS=${FLP_PTXAS:-ptxas} LC_ALL=C
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y runtime/flp.h)}
FLP_PACKS_VERSION=$(sed -n 's/.*FLP_VERSION_STRING "\(.*\)"/\1/p' runtime/flp.h)
export SOURCE_DATE_EPOCH FLP_PACKS_VERSION

stamp=$(cat "$target/build/lib/libflpgen.so" $list <("$FLP_PTXAS" --version) | sha256sum)
if [[ $(cat "$pack.stamp" 2>/dev/null) != "$stamp" ]]; then
  printf '== the pack for an H200: minutes of CPU; a terminal shows how many are left\n'
  "$flpgen" pack build --list $list --variants --cubin sm_90 --name "flp $FLP_PACKS_VERSION for H200" --out "$pack"
  printf '%s\n' "$stamp" >"$pack.stamp"
fi
rm -rf "$package"
mkdir -p "$package/flp/share/flp/packs"
cp packaging/wheel/packs/* LICENSE "$package/"
cp "$pack" "$package/flp/share/flp/packs/"
"$base/venv/bin/python" packaging/wheel/pack.py --package "$package" --out "$base/dist"
