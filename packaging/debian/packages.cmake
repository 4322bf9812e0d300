# Debian packages by CPack: libflp0, libflp-dev, flpgen, python3-flp. `./setup.sh deb` builds them in a tree of its own;
# `cpack --config BUILD/CPackConfig.cmake` makes them of any build that has the generator.
find_program(FLP_DPKG_SHLIBDEPS dpkg-shlibdeps)
if(NOT FLP_GENERATOR OR NOT FLP_DPKG_SHLIBDEPS)
  return()
endif()

# One that a package of Debian itself, -1 and so on, is newer than.
set(FLP_DEB_REVISION 0flp1 CACHE STRING "Revision of the Debian packages")
set(FLP_DEB_MAINTAINER "flp maintainers <maintainers@flp.invalid>" CACHE STRING "Maintainer of the Debian packages")
set(deb_version ${PROJECT_VERSION}-${FLP_DEB_REVISION})
set(deb_work ${PROJECT_BINARY_DIR}/debian)
set(library_package libflp${PROJECT_VERSION_MAJOR})

# ---- what is installed beside the files of the plain install, by component alone ----

execute_process(COMMAND ${CMAKE_COMMAND} -DCHANGES=${PROJECT_SOURCE_DIR}/CHANGELOG.md
                        -DOUT=${deb_work}/changelog.Debian.gz
                        -DVERSION=${deb_version} "-DMAINTAINER=${FLP_DEB_MAINTAINER}"
                        -P ${CMAKE_CURRENT_LIST_DIR}/changelog.cmake
                COMMAND_ERROR_IS_FATAL ANY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/CHANGELOG.md)

function(flp_deb_component component package)
  install(FILES ${deb_work}/changelog.Debian.gz ${PROJECT_SOURCE_DIR}/packaging/debian/copyright
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
flp_deb_component(library ${library_package})
flp_deb_component(development libflp-dev)
flp_deb_component(generator flpgen)
flp_deb_component(python python3-flp)

# flp.h travels with the Python package, which mirrors it.
set(python_folder lib/python3/dist-packages)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/python/flp DESTINATION ${python_folder} COMPONENT python
        EXCLUDE_FROM_ALL PATTERN __pycache__ EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/runtime/flp.h DESTINATION ${python_folder}/flp/include COMPONENT python
        EXCLUDE_FROM_ALL)
configure_file(${CMAKE_CURRENT_LIST_DIR}/METADATA.in ${deb_work}/METADATA @ONLY)
install(FILES ${deb_work}/METADATA DESTINATION ${python_folder}/flp-${PROJECT_VERSION}.dist-info COMPONENT python
        EXCLUDE_FROM_ALL)

# ---- the packages ----

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME flp)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # else it comes before the description of every package
set(CPACK_PACKAGE_CONTACT "${FLP_DEB_MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL library development generator python)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SOURCE flp)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${FLP_DEB_REVISION})
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library_package})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS libopenblas0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "flpgen (= ${deb_version}), libcuda1")
# CPack writes scripts that call ldconfig where it is given none; the trigger does their work, so it is given names of
# files that there are not.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
    "${deb_work}/shlibs;${deb_work}/symbols;${deb_work}/triggers;${deb_work}/none/postinst;${deb_work}/none/postrm")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "fused log-probabilities of a language-model head
libflp computes log-probabilities, entropies and their gradients from hidden
states and the weight of a language-model head; the scores of the whole
vocabulary never exist in memory. It runs on NVIDIA GPUs and on the CPU.

This package has the shared library and the shape-generic GPU kernels.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libflp-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library_package} (= ${deb_version})")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "fused log-probabilities of a language-model head - development
libflp computes log-probabilities, entropies and their gradients from hidden
states and the weight of a language-model head; the scores of the whole
vocabulary never exist in memory.

This package has the header and the files of CMake and pkg-config.")

set(CPACK_DEBIAN_GENERATOR_PACKAGE_NAME flpgen)
set(CPACK_DEBIAN_GENERATOR_PACKAGE_SECTION science)
set(CPACK_DEBIAN_GENERATOR_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_GENERATOR_PACKAGE_DEPENDS "${library_package} (= ${deb_version})")
set(CPACK_DEBIAN_GENERATOR_PACKAGE_SUGGESTS "python3-flp, libcuda1")
set(CPACK_DEBIAN_GENERATOR_DESCRIPTION "generator and tuner of libflp's GPU kernels
The command flpgen generates, checks, tunes, times and packs the kernels that
libflp runs, and says what a machine offers. With this package installed libflp
generates the kernels that it lacks when a program asks for them.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-flp)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.9), python3:any, ${library_package} (= ${deb_version})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "python3-torch, flpgen (= ${deb_version})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-matplotlib)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
    "${CMAKE_CURRENT_LIST_DIR}/python3-flp/postinst;${CMAKE_CURRENT_LIST_DIR}/python3-flp/prerm")
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "fused log-probabilities of a language-model head - Python
The module flp calls libflp from PyTorch: log-probabilities, entropies, policy
losses and their gradients from hidden states and the weight of a
language-model head, without the scores of the whole vocabulary.")

# Manual pages are compressed, and the control files of libflp0 are made, of what was staged.
configure_file(${CMAKE_CURRENT_LIST_DIR}/staged.cmake.in ${deb_work}/staged.cmake @ONLY)
set(CPACK_PRE_BUILD_SCRIPTS ${deb_work}/staged.cmake)
include(CPack)
