# What `cmake --install` puts beside libflp: the header, find_package(flp) and pkg-config files, examples. Components:
# library, development; with gen/ also generator; python is installed only where it is named.
include(CMakePackageConfigHelpers)

install(TARGETS flp EXPORT flpTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS flp_jax LIBRARY DESTINATION ${FLPGEN_INSTALL_LIBDIR} COMPONENT library)
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/flp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT flpTargets NAMESPACE flp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flp COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/flpConfig.cmake.in ${PROJECT_BINARY_DIR}/generated/flpConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flp)
# The same rule as the soname's: programs of any 0.x run with a newer 0.x (flp.h, "ABI").
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/flpConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/flpConfig.cmake ${PROJECT_BINARY_DIR}/generated/flpConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flp COMPONENT development)

# The file stays true wherever the installed tree is moved.
file(RELATIVE_PATH FLP_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_SOURCE_DIR}/flp.pc.in ${PROJECT_BINARY_DIR}/generated/flp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/flp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT development)
