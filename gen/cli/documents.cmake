# What the command says of itself, as files: completions of shells, and manual pages where help2man is found.
find_program(FLP_HELP2MAN help2man)
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  return()
endif()

set(share ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_DATADIR})
set(FLPGEN_DOCUMENTS_STAMP ${PROJECT_BINARY_DIR}/generated/documents.stamp)
add_custom_command(
  OUTPUT ${FLPGEN_DOCUMENTS_STAMP}
  COMMAND ${CMAKE_COMMAND} "-DRUN=${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:flpgen_command>" -DSHARE=${share}
          "-DHELP2MAN=$<$<BOOL:${FLP_HELP2MAN}>:${FLP_HELP2MAN}>" -DVERSION=${PROJECT_VERSION}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/write_documents.cmake
  COMMAND ${CMAKE_COMMAND} -E touch ${FLPGEN_DOCUMENTS_STAMP}
  DEPENDS flpgen_command flpgen ${CMAKE_CURRENT_SOURCE_DIR}/write_documents.cmake
  COMMENT "Writing completions and manual pages"
  VERBATIM)
add_custom_target(flpgen_documents ALL DEPENDS ${FLPGEN_DOCUMENTS_STAMP})

foreach(folder bash-completion zsh fish)
  install(DIRECTORY ${share}/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT generator OPTIONAL)
endforeach()
install(DIRECTORY ${share}/man/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT generator OPTIONAL)
