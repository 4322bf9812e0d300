# Writes flp_sources.h: SHA-256 over the version, the generator's sources and the templates.
#
#   cmake -DOUT=<file> -DSOURCE_DIR=<top of the tree> -P gen/sources_hash.cmake
#
# The manifest below is the one that gen/sources.c rebuilds for a template folder; change both together.
cmake_minimum_required(VERSION 3.20)

file(STRINGS "${SOURCE_DIR}/runtime/flp.h" version_line REGEX "^#define FLP_VERSION_STRING ")
string(REGEX MATCH "\"([^\"]+)\"" _ "${version_line}")
set(version "${CMAKE_MATCH_1}")
if(version STREQUAL "")
  message(FATAL_ERROR "runtime/flp.h defines no FLP_VERSION_STRING")
endif()

# manifest_of(<variable> <folder> <file>...): one line "name sha256" a file, sorted
function(manifest_of variable folder)
  set(names ${ARGN})
  list(SORT names COMPARE STRING CASE SENSITIVE)
  set(text "")
  foreach(name IN LISTS names)
    file(SHA256 "${folder}/${name}" hash)
    string(APPEND text "${name} ${hash}\n")
  endforeach()
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

file(GLOB generator RELATIVE "${SOURCE_DIR}/gen" "${SOURCE_DIR}/gen/*.c" "${SOURCE_DIR}/gen/*.h")
file(GLOB_RECURSE templates RELATIVE "${SOURCE_DIR}/templates" "${SOURCE_DIR}/templates/*.lua")
manifest_of(generator_manifest "${SOURCE_DIR}/gen" ${generator})
manifest_of(template_manifest "${SOURCE_DIR}/templates" ${templates})
# a kernel is declared from the parameter lists
file(SHA256 "${SOURCE_DIR}/runtime/abi.h" abi_hash)
string(SHA256 generator_hash "abi.h ${abi_hash}\n${generator_manifest}")
string(SHA256 sources_hash "version ${version}\ngenerator ${generator_hash}\n${template_manifest}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " sources_bytes "${sources_hash}")

file(WRITE "${OUT}" "/* flp_sources.h: written by gen/sources_hash.cmake; names the templates and generator of this build. */
#ifndef FLP_SOURCES_H
#define FLP_SOURCES_H

#define FLP_GENERATOR_SHA256 \"${generator_hash}\"
#define FLP_SOURCES_SHA256_HEX \"${sources_hash}\"
#define FLP_SOURCES_SHA256_BYTES {${sources_bytes}}

#endif
")
