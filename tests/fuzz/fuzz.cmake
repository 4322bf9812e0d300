# One program per harness fuzz_NAME.c. Ordinary builds link standalone.c, which runs seeds and a fixed count of
# mutations; preset `fuzz` (FLP_FUZZER) links libFuzzer. seeds/NAME and NAME.dict are of harness NAME; seeds.py writes
# the seeds that are made.
#
# A line a list: harnesses of libflp's objects, and those that need the command's parts or the generator.
set(FUZZ_OF_LIBRARY container desc loss pack settings)
set(FUZZ_OF_COMMAND hfconfig keys lint losslua manifest records safetensors)

set(fuzz ${CMAKE_CURRENT_SOURCE_DIR}/fuzz)
set(FUZZ_SEEDS ${PROJECT_BINARY_DIR}/tests/fuzz/seeds)
if(NOT TARGET flpgen_cli)
  set(FUZZ_OF_COMMAND "")
endif()

add_custom_target(fuzz_programs)
add_dependencies(unit_programs fuzz_programs)
# Kernels and losses as seeds come from the command. The sanitized build of the tests has none: there those harnesses run
# in test_mutation and test_pack_mutation.
set(FUZZ_FLPGEN "")
set(FUZZ_OF_KERNELS container desc loss pack)
if(TARGET flpgen_command AND NOT FLP_SANITIZE)
  set(FUZZ_FLPGEN --flpgen=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/flpgen)
  set(FUZZ_OF_KERNELS "")
endif()
add_test(NAME fuzz_seeds COMMAND ${FLP_PYTHON} ${fuzz}/seeds.py ${FUZZ_SEEDS} ${FUZZ_FLPGEN})
set_tests_properties(fuzz_seeds PROPERTIES FIXTURES_SETUP fuzz_seeds TIMEOUT 600 LABELS unit)

foreach(name IN LISTS FUZZ_OF_LIBRARY FUZZ_OF_COMMAND)
  add_executable(fuzz_${name} ${fuzz}/fuzz_${name}.c)
  target_link_libraries(fuzz_${name} PRIVATE flp_core)
  if(name IN_LIST FUZZ_OF_COMMAND)
    target_link_libraries(fuzz_${name} PRIVATE flpgen_cli flpgen)
  endif()
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fuzz)
  add_dependencies(fuzz_programs fuzz_${name})
  if(FLP_FUZZER)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    continue()
  endif()
  target_sources(fuzz_${name} PRIVATE ${fuzz}/standalone.c)
  if(name IN_LIST FUZZ_OF_KERNELS)
    continue()
  endif()
  set(dictionary "")
  if(EXISTS ${fuzz}/${name}.dict)
    set(dictionary -dict=${fuzz}/${name}.dict)
  endif()
  add_test(NAME fuzz_${name} COMMAND fuzz_${name} -runs=2000 -seed=1 ${dictionary} ${FUZZ_SEEDS}/${name}
           WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fuzz)
  set_tests_properties(fuzz_${name} PROPERTIES FIXTURES_REQUIRED fuzz_seeds)
  label_unit(fuzz_${name} "${FUZZ_FLPGEN}")
endforeach()

if(TARGET fuzz_lint) # the command does not have it; libflpgen exports no such function
  target_sources(fuzz_lint PRIVATE ${PROJECT_SOURCE_DIR}/gen/lint/lint.c ${PROJECT_SOURCE_DIR}/gen/sources/tokens.c)
endif()
