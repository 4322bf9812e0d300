# The shape-generic kernels of a build without generator: those of another build (FLP_GENERIC_FROM), or none.
set(FLP_GENERIC_DIR ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_DATADIR}/flp/generic)

if(NOT FLP_GENERIC_FROM)
  message(WARNING
    "FLP_GENERATOR=OFF without FLP_GENERIC_FROM: no kernels are installed, so that on a GPU every plan fails unless "
    "FLP_CACHE_PATH names a pack or FLP_GENERIC_DIR kernels. -DFLP_GENERIC_FROM=DIR installs share/flp/generic of a "
    "build of the same sources that has the generator.")
  return()
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${FLP_GENERIC_FROM}/*.flpk)
if(NOT kernels)
  message(FATAL_ERROR "FLP_GENERIC_FROM=${FLP_GENERIC_FROM} has no kernels (*.flpk); accepted: share/flp/generic of a "
                      "build that has the generator")
endif()
file(REAL_PATH ${FLP_GENERIC_FROM} given)
file(REAL_PATH ${FLP_GENERIC_DIR} own)
if(NOT given STREQUAL own)
  file(REMOVE_RECURSE ${FLP_GENERIC_DIR})
  file(COPY ${kernels} DESTINATION ${FLP_GENERIC_DIR})
endif()
install(DIRECTORY ${FLP_GENERIC_DIR}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/flp/generic COMPONENT library)
