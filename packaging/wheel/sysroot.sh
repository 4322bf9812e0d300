#!/usr/bin/env bash
# Makes build/wheel/ARCH: a compiler for glibc 2.28 (zig cc, of PyPI) and what it links from Debian's packages, as
# static archives. Lua is compiled, because Debian's archive does not fit into a shared library. Nothing is installed.
# usage: packaging/wheel/sysroot.sh amd64|arm64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly GLIBC=2.28
readonly SUITE=bookworm
readonly PACKAGES=(llvm-19-dev libstdc++-12-dev libgcc-s1 gcc-12-base zlib1g-dev libzstd-dev libsodium-dev
  liblua5.4-dev libjansson-dev libsqlite3-dev)
readonly EMULATED=(libc6 libgcc-s1) # what the build's programs of another architecture need to run here
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

arch=$1
case "$arch" in
  amd64) triple=x86_64-linux-gnu processor=x86_64 ;;
  arm64) triple=aarch64-linux-gnu processor=aarch64 ;;
  *) printf 'sysroot.sh: architecture %s; accepted: amd64, arm64\n' "$arch" >&2; exit 2 ;;
esac
is_foreign=$([[ $(dpkg --print-architecture) == "$arch" ]] || echo yes)
if [[ $is_foreign ]] && ! command -v "qemu-$processor-static" >/dev/null; then
  printf 'sysroot.sh: %s is built with programs of it, and qemu-%s-static is not in PATH: apt-get install %s\n' \
    "$arch" "$processor" qemu-user-static >&2
  exit 1
fi
base=$PWD/build/wheel
out=$base/$arch
root=$out/root

# Where this machine's apt has suite $1 from.
archive_of() {
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' | awk -v suite="$1" '$1 == suite { print $2; exit }'
}

# Packages and sources of this suite, of any architecture, without touching the machine's own apt.
download() {
  local apt=$out/apt
  mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,etc/apt.conf.d,etc/preferences.d} "$out/debs"
  : >"$apt/state/status"
  local kind suite archive
  for suite in $SUITE $SUITE-security; do
    archive=$(archive_of "$suite")
    [[ $archive ]] || { printf 'sysroot.sh: apt has no source of %s; /etc/apt must name one\n' "$suite" >&2; exit 1; }
    for kind in deb deb-src; do printf '%s [signed-by=%s] %s %s main\n' "$kind" "$KEYRING" "$archive" "$suite"; done
  done >"$apt/etc/sources.list"
  cat >"$apt/apt.conf" <<EOF
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
Dir::Etc "$apt/etc";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "";
EOF
  (
    export APT_CONFIG=$apt/apt.conf
    cd "$out/debs"
    apt-get update -qq
    apt-get download -qq "${PACKAGES[@]}"
    apt-get source -qq --download-only lua5.4 >/dev/null
    [[ ! $is_foreign ]] || (mkdir -p emulated && cd emulated && apt-get download -qq "${EMULATED[@]}")
  )
}

unpack() {
  local deb exports=$root/usr/lib/llvm-19/lib/cmake/llvm file
  for deb in "$out"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
  find "$root" -name '*.so*' ! -name libgcc_s.so.1 -delete # archives are all there is to find
  rm "$root/usr/lib/$triple/liblua5.4.a"
  # LLVM's list of targets: the static zstd, no Z3 (nothing that is linked asks for it), and programs that exist.
  sed -i 's/zstd::libzstd_shared/zstd::libzstd_static/; s#;[^;"]*/libz3\.so##' "$exports/LLVMExports.cmake"
  grep -oh '"${_IMPORT_PREFIX}/[^"]*"' "$exports"/LLVMExports-*.cmake | sed 's/^"${_IMPORT_PREFIX}.//; s/"$//' |
    while read -r file; do
      file=$root/usr/lib/llvm-19/$file
      [[ -e $file ]] || { mkdir -p "$(dirname "$file")" && : >"$file"; }
    done
}

compiler() {
  local tool words
  mkdir -p "$out/bin"
  for tool in cc ar ranlib; do
    words=$tool
    [[ $tool != cc ]] || words="cc -target $triple.$GLIBC"
    printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%q ZIG_LOCAL_CACHE_DIR=%q\nexec %q %s "$@"\n' "$base/zig-cache" \
      "$base/zig-cache" "$(zig_path)" "$words" >"$out/bin/$tool"
    chmod +x "$out/bin/$tool"
  done
  local emulator=/usr/bin/env # runs what it is given
  [[ ! $is_foreign ]] || emulator="qemu-$processor-static;-L;$out/system"
  cat >"$out/target.cmake" <<EOF
set(FLP_TRIPLE $triple)
set(CMAKE_SYSTEM_PROCESSOR $processor)
set(CMAKE_CROSSCOMPILING_EMULATOR "$emulator")
EOF
}

zig_path() {
  "$base/venv/bin/python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))'
}

# An archive of the C files that are given, compiled in the folder that is given: archive $1, folder $2, flags $3.
archive() {
  local objects
  objects=$(mktemp -d)
  (cd "$2" && printf '%s\n' "${@:4}" | xargs -P "$(nproc)" -I{} sh -c \
    "'$out/bin/cc' -O2 -g0 -fPIC -DNDEBUG -ffile-prefix-map='$2'= $3 -c {} -o '$objects'/\$(basename {} .c).o")
  (cd "$objects" && "$out/bin/ar" rcsD "$1" $(ls | LC_ALL=C sort))
  rm -r "$objects"
}

# The system that the emulator shows to a program: glibc and libgcc_s alone.
emulated_system() {
  local deb
  for deb in "$out"/debs/emulated/*.deb; do dpkg-deb -x "$deb" "$out/system"; done
}

compile() {
  local lua=$out/lua sources
  (cd "$out/debs" && dpkg-source --no-check --no-copy -x lua5.4_*.dsc "$lua" >/dev/null)
  mapfile -t sources < <(cd "$lua/src" && ls ./*.c | grep -v -e '/lua\.c' -e '/luac\.c')
  archive "$root/usr/lib/$triple/liblua5.4.a" "$lua/src" \
    "-std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -I$root/usr/include/$triple" "${sources[@]}"
  mkdir -p "$out/lib"
  archive "$out/lib/liblibc_compat.a" "$PWD/packaging/wheel" "-std=gnu11 -Wall -Wextra" libc_compat.c
}

# What the sysroot was made of. A change of these files makes it anew.
stamp=$(cat packaging/wheel/sysroot.sh packaging/wheel/libc_compat.c packaging/wheel/requirements.txt | sha256sum)
[[ $(cat "$out/stamp" 2>/dev/null) != "$stamp" ]] || exit 0
rm -rf "$out" && mkdir -p "$root"
download
unpack
[[ ! $is_foreign ]] || emulated_system
compiler
compile
printf '%s\n' "$stamp" >"$out/stamp"
