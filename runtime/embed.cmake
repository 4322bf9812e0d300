# Writes a C file that holds every file of a folder, sorted by name, so that the same tree gives the same file.
#
#   cmake -DOUT=<file.c> -DDIR=<folder> -DSUFFIX=<of the files, or nothing> -DHEADER=<header> -DTYPE=<type> -DNAME=<array>
#         -P runtime/embed.cmake
#
# The header declares `const TYPE NAME[]`, whose rows are {name, bytes, length}, and `const size_t NAME_count`.
cmake_minimum_required(VERSION 3.20)

file(GLOB_RECURSE names RELATIVE "${DIR}" "${DIR}/*${SUFFIX}")
list(SORT names COMPARE STRING CASE SENSITIVE)
set(arrays "")
set(rows "")
set(count 0)
foreach(name IN LISTS names)
  file(READ "${DIR}/${name}" hex HEX)
  file(SIZE "${DIR}/${name}" length)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const unsigned char file_${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", file_${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()

file(WRITE "${OUT}" "/* ${NAME}, written by runtime/embed.cmake. */
#include \"${HEADER}\"

${arrays}
const ${TYPE} ${NAME}[] = {
${rows}    {0, 0, 0},
};
const size_t ${NAME}_count = ${count};
")
