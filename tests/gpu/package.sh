#!/usr/bin/env bash
# Packs what a GPU machine without this tree, LLVM or Lua needs to check and measure a build. See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: tests/gpu/package.sh BUILD PACKAGE.tgz [FILE ...]

Installs the build folder BUILD into a package, stripped, with the shared libraries that it is linked to (but for the C
library's own), the Python binding, the examples, the scripts of tests/gpu and tests/hosts; and the FILEs, such as kernel packs. There:

    tar xzf PACKAGE.tgz && . flp/env.sh && python3 flp/tests/gpu/record.py --flpgen "$FLPGEN" --out out --only check,bench

env.sh finds libraries, binding and command by its own place, and gives the process an empty cache.

exit: 0 done; 1 a step failed; 2 wrong usage
EOF
}

[[ ${1:-} != --help && ${1:-} != -h ]] || { usage; exit 0; }
(($# >= 2)) || { usage >&2; exit 2; }
build=$1 package=$2
shift 2
[[ -f $build/CMakeCache.txt ]] || { printf 'package.sh: %s is no build folder\n' "$build" >&2; exit 2; }
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/flp
cmake --install "$build" --prefix "$root" >/dev/null
compgen -G "$root/share/flp/generic/*.flpk" >/dev/null ||
  { printf 'package.sh: %s has no generic kernels; build its target flp_generic\n' "$build" >&2; exit 1; }
rm -rf "$root/include" "$root"/lib*/cmake "$root"/lib*/pkgconfig
find "$root/bin" "$root"/lib* -type f \( -name flpgen -o -name '*.so*' \) -exec strip --strip-unneeded {} +

# What the programs are linked to and a GPU machine may lack. The C library and the compiler's must be the machine's own.
ldd "$root/bin/flpgen" "$root"/lib*/*.so | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-[^/]*|libflp(gen)?)\.so' |
  xargs -I{} cp -L {} "$root/lib/"

mkdir -p "$root/tests" "$root/runtime" "$root/autotune/presets"
cp -r "$tree/tests/gpu" "$tree/tests/hosts" "$tree/tests/tilings.json" "$root/tests/"
mkdir "$root/tests/support"
cp "$tree"/tests/support/flp_{reference,exact,exact_divergences}.py "$root/tests/support/" # for tests/hosts
cp -r "$tree/runtime/python" "$tree/runtime/flp.h" "$root/runtime/"
cp "$tree"/autotune/*.py "$root/autotune/"
cp "$tree/autotune/presets/presets.json" "$root/autotune/presets/"
rm -rf "$root/tests/gpu/evidence" "$root/runtime/python/flp/lib"
find "$root" -name __pycache__ -prune -exec rm -rf {} +
for file in "$@"; do cp "$file" "$root/"; done

cat >"$root/env.sh" <<'EOF'
# Sourced: the package's own command, libraries and binding come first.
FLP_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export FLP_ROOT FLPGEN=$FLP_ROOT/bin/flpgen FLP_LIBRARY=$FLP_ROOT/lib/libflp.so FLP_CACHE_DIR=$(mktemp -d)
export PATH=$FLP_ROOT/bin:$PATH LD_LIBRARY_PATH=$FLP_ROOT/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$FLP_ROOT/runtime/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
EOF
tar -C "$work" -czf "$package" flp
du -h "$package"
