# CMake toolchain of the wheel: the compiler and sysroot that sysroot.sh made, one folder per architecture of Debian.
# cmake --toolchain packaging/wheel/toolchain.cmake -DFLP_SYSROOT=build/wheel/amd64
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FLP_SYSROOT)
include(${FLP_SYSROOT}/target.cmake) # FLP_TRIPLE, CMAKE_SYSTEM_PROCESSOR, CMAKE_CROSSCOMPILING_EMULATOR

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER ${FLP_SYSROOT}/bin/cc)
set(CMAKE_AR ${FLP_SYSROOT}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${FLP_SYSROOT}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_STRIP true CACHE FILEPATH "") # the linker does it
set(CMAKE_LIBRARY_ARCHITECTURE ${FLP_TRIPLE})

# Archives and headers of the sysroot alone; programs (pkg-config) of the machine.
set(root ${FLP_SYSROOT}/root)
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/${FLP_TRIPLE}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})

# No path of this machine gets into what is compiled.
get_filename_component(tree ${CMAKE_CURRENT_LIST_DIR}/../.. REALPATH)
set(CMAKE_C_FLAGS_INIT "-isystem ${root}/usr/include/${FLP_TRIPLE} -isystem ${root}/usr/include \
-ffile-prefix-map=${tree}/= -ffile-prefix-map=${FLP_SYSROOT}/= -ffile-prefix-map=${CMAKE_BINARY_DIR}/=")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG" CACHE STRING "")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT -s)
endforeach()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

# gcc's libstdc++, which Debian's LLVM was compiled for; its unwinder is the system's.
file(GLOB libstdcxx ${root}/usr/lib/gcc/${FLP_TRIPLE}/*/libstdc++.a)
set(FLP_LIBSTDCXX ${libstdcxx} ${root}/lib/${FLP_TRIPLE}/libgcc_s.so.1 ${FLP_SYSROOT}/lib/liblibc_compat.a)
