# Writes a C file that holds the preset file as the array cli_presets_text, with a 0 behind it.
#
#   cmake -DFILE=<presets.json> -DOUT=<file.c> -P autotune/presets/embed.cmake
cmake_minimum_required(VERSION 3.20)

file(READ "${FILE}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE "${OUT}" "/* autotune/presets/presets.json of this build, written by autotune/presets/embed.cmake. */
extern const unsigned char cli_presets_text[];
const unsigned char cli_presets_text[] = {${bytes}0};
")
