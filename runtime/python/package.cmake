# Lays out a self-contained Python package: the sources beside this file with the libraries and generic kernels of one
# build, and the shared libraries that Debian has and other systems may lack.
# cmake -DBUILD=<build tree> -DOUT=<folder> -P runtime/python/package.cmake
set(stage ${OUT}-stage)
file(REMOVE_RECURSE ${OUT} ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${stage} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(COPY ${CMAKE_CURRENT_LIST_DIR}/ DESTINATION ${OUT} PATTERN __pycache__ EXCLUDE PATTERN package.cmake EXCLUDE)
if(EXISTS ${stage}/share) # a build without the generator has no kernels
  file(COPY ${stage}/share DESTINATION ${OUT}/flp)
endif()

# Copies a library under the name it is looked up by; wheels hold no links.
function(carry path)
  get_filename_component(name ${path} NAME)
  file(REAL_PATH ${path} file)
  file(COPY_FILE ${file} ${OUT}/flp/lib/${name})
endfunction()

file(COPY ${CMAKE_CURRENT_LIST_DIR}/../flp.h DESTINATION ${OUT}/flp/include)
file(MAKE_DIRECTORY ${OUT}/flp/lib)
file(GLOB_RECURSE libraries ${stage}/libflp.so ${stage}/libflpgen.so)
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${libraries} RESOLVED_DEPENDENCIES_VAR needed
     PRE_INCLUDE_REGEXES "^lib(lua5\\.4|sodium|zstd)\\.so" PRE_EXCLUDE_REGEXES ".*")
foreach(library IN LISTS libraries needed)
  carry(${library})
endforeach()
file(REMOVE_RECURSE ${stage})
