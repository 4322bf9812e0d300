# Writes a C file that holds every template (gen/sources/sources.h defines its form).
#
#   cmake -DOUT=<file.c> -DDIR=<templates> -P gen/sources/embed.cmake
#
# Templates stand in it sorted by name, so that the same tree gives the same file.
cmake_minimum_required(VERSION 3.20)

file(GLOB_RECURSE names RELATIVE "${DIR}" "${DIR}/*.lua")
list(SORT names COMPARE STRING CASE SENSITIVE)
set(arrays "")
set(rows "")
set(count 0)
foreach(name IN LISTS names)
  file(READ "${DIR}/${name}" hex HEX)
  file(SIZE "${DIR}/${name}" length)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const unsigned char source_${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", source_${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()

file(WRITE "${OUT}" "/* Templates of this build, written by gen/sources/embed.cmake. */
#include \"${CMAKE_CURRENT_LIST_DIR}/sources.h\"

${arrays}
const gen_source gen_sources_embedded[] = {
${rows}    {0, 0, 0},
};
const size_t gen_sources_embedded_count = ${count};
")
