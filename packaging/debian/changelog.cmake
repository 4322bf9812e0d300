# Writes Debian's changelog, compressed, of the newest version in CHANGELOG.md.
# cmake -DCHANGES=FILE -DOUT=FILE.gz -DVERSION=TEXT -DMAINTAINER=TEXT -P changelog.cmake
# The date is SOURCE_DATE_EPOCH, else that of CHANGELOG.md.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  file(TIMESTAMP ${CHANGES} epoch "%s" UTC)
  set(ENV{SOURCE_DATE_EPOCH} ${epoch})
endif()
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

set(text "flp (${VERSION}) unstable; urgency=medium\n\n")
string(APPEND text "  * Release ${VERSION}: CHANGELOG.md of the sources has what changed.\n\n")
string(APPEND text " -- ${MAINTAINER}  ${date}\n")
get_filename_component(folder ${OUT} DIRECTORY)
set(plain ${folder}/changelog.Debian)
file(WRITE ${plain} "${text}")
execute_process(COMMAND gzip -9nf ${plain} COMMAND_ERROR_IS_FATAL ANY)
