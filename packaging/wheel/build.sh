#!/usr/bin/env bash
# Builds the wheel of flp into build/wheel/dist, that of another architecture into build/wheel/dist-ARCH, with programs
# of that architecture run by an emulator. See README.md beside this file.
# usage: packaging/wheel/build.sh [amd64|arm64]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly arch=${1:-$(dpkg --print-architecture)}
readonly base=$PWD/build/wheel
readonly here=packaging/wheel
readonly target=$base/$arch
readonly venv=$base/venv
dist=$base/dist
[[ $(dpkg --print-architecture) == "$arch" ]] || dist=$base/dist-$arch
readonly dist

# Times in the wheel: of the last commit, or of the release that is unpacked.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y runtime/flp.h)}
export SOURCE_DATE_EPOCH LC_ALL=C

say() { printf '== %s\n' "$*"; }

tools() {
  cmp -s $here/requirements.txt "$venv/requirements.txt" && return
  say "fetching the tools of the wheel's build"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet -r $here/requirements.txt
  cp $here/requirements.txt "$venv/requirements.txt"
}

compile() {
  local log=$target/configure.log
  cmake -S . -B "$target/build" -G Ninja --toolchain "$PWD/$here/toolchain.cmake" -DFLP_SYSROOT="$target" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_TESTING=OFF -DFLP_WERROR=OFF >"$log" 2>&1 ||
    { cat "$log"; exit 1; }
  cmake --build "$target/build"
}

tools
say "what the wheel links, for $arch"
$here/sysroot.sh "$arch"
say "building"
compile
cmake -DBUILD="$target/build" -DOUT="$target/package" -DCARRY=OFF -P runtime/python/package.cmake
"$venv/bin/python" $here/pack.py --package "$target/package" --sysroot "$target" --out "$dist"
"$venv/bin/auditwheel" show "$dist"/flp-*_"$(sed -n 's/.*PROCESSOR \(.*\))/\1/p' "$target/target.cmake")".whl
