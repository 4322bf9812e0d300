# Lays out a self-contained Python package: the sources beside this file, and inside of the folder flp/ one build as it
# is installed (bin, lib, include, share), with the shared libraries that Debian has and other systems may lack.
# cmake -DBUILD=<build tree> -DOUT=<folder> [-DCARRY=OFF] -P runtime/python/package.cmake
# CARRY=OFF takes no libraries of this machine, for a build that needs none.
set(stage ${OUT}-stage)
set(prefix ${OUT}/flp)
file(REMOVE_RECURSE ${OUT} ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${stage} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(COPY ${CMAKE_CURRENT_LIST_DIR}/ DESTINATION ${OUT} PATTERN __pycache__ EXCLUDE PATTERN package.cmake EXCLUDE
     PATTERN examples EXCLUDE)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/../../LICENSE DESTINATION ${OUT})
foreach(part bin include share) # a build without the generator has neither command nor kernels
  if(EXISTS ${stage}/${part})
    file(COPY ${stage}/${part} DESTINATION ${prefix})
  endif()
endforeach()

# Copies a library under the name it is looked up by; wheels hold no links.
function(carry path)
  get_filename_component(name ${path} NAME)
  file(REAL_PATH ${path} file)
  file(COPY_FILE ${file} ${prefix}/lib/${name})
endfunction()

file(MAKE_DIRECTORY ${prefix}/lib)
file(GLOB_RECURSE libraries ${stage}/libflp.so.0 ${stage}/libflp_jax.so ${stage}/libflpgen.so)
set(needed "")
if(NOT DEFINED CARRY OR CARRY)
  file(GLOB programs ${stage}/bin/flpgen)
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${libraries} EXECUTABLES ${programs} RESOLVED_DEPENDENCIES_VAR needed
       PRE_INCLUDE_REGEXES "^lib(lua5\\.4|sodium|zstd|jansson|sqlite3|z)\\.so" PRE_EXCLUDE_REGEXES ".*")
endif()
foreach(library IN LISTS libraries needed)
  carry(${library})
endforeach()

# What a linker finds for -lflp; the file that programs load is libflp.so.0.
file(WRITE ${prefix}/lib/libflp.so "/* GNU ld script */\nINPUT(libflp.so.0)\n")
foreach(part cmake pkgconfig)
  if(EXISTS ${stage}/lib/${part})
    file(COPY ${stage}/lib/${part} DESTINATION ${prefix}/lib)
  endif()
endforeach()
file(GLOB targets ${prefix}/lib/cmake/flp/flpTargets-*.cmake)
foreach(file IN LISTS targets)
  file(READ ${file} text)
  string(REGEX REPLACE "libflp\\.so\\.[0-9.]+" "libflp.so.0" text "${text}")
  file(WRITE ${file} "${text}")
endforeach()
file(REMOVE_RECURSE ${stage})
