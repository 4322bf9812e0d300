# One Criterion executable per tests/unit/*/test_*.c, in folders named as those that they test. support/ holds helpers
# that are linked into all of them, fakes/ shared libraries that stand in for libcuda, cuBLASLt and libflpgen.
include(CheckLinkerFlag)
set(unit ${CMAKE_CURRENT_SOURCE_DIR}/unit)
file(GLOB tests CONFIGURE_DEPENDS ${unit}/*/test_*.c)
file(GLOB helpers CONFIGURE_DEPENDS ${unit}/support/*.c)
file(GLOB fakes CONFIGURE_DEPENDS ${unit}/fakes/*.c)

# Programs of faults/ meet system functions that fail: the linker leads these calls to faults/faults.c.
set(FLP_FAULTY malloc calloc realloc strdup asprintf aligned_alloc getcwd realpath open openat fdopendir read pread
    write fsync close mkdir renameat unlinkat getrandom fstat fstatat lstat flock pthread_create sodium_init sched_getaffinity
    dladdr1 getpwuid_r)
list(TRANSFORM FLP_FAULTY PREPEND LINKER:--wrap=)

# Tests that need the command's own parts, by name.
set(CLI_TESTS "^test_(cli|safetensors|oracle|check|bench|measure|gemm|pack|parallel|space|model|search|records|tune)")
set(FLP_TEST_SCRATCH ${PROJECT_BINARY_DIR}/tests/scratch)
file(REMOVE_RECURSE ${FLP_TEST_SCRATCH})
file(MAKE_DIRECTORY ${FLP_TEST_SCRATCH})

foreach(source IN LISTS fakes)
  get_filename_component(name ${source} NAME_WE)
  add_library(${name} MODULE ${source})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
  list(APPEND FLP_TEST_FAKES ${name})
  set_target_properties(${name} PROPERTIES C_VISIBILITY_PRESET default
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endforeach()
foreach(name fake_provider fake_ir_provider) # to name kernels, and to read a loss program
  target_link_libraries(${name} PRIVATE flp_core)
endforeach()

add_library(flp_test_settings INTERFACE)
target_include_directories(flp_test_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(flp_test_settings INTERFACE
  FLP_TEST_TREE="${PROJECT_SOURCE_DIR}" FLP_TEST_SCRATCH="${FLP_TEST_SCRATCH}"
  FLP_TEST_FAKE_CUDA="${PROJECT_BINARY_DIR}/tests/libfake_cuda.so"
  FLP_TEST_FAKE_BLAS="${PROJECT_BINARY_DIR}/tests/libfake_blas.so"
  FLP_TEST_FAKE_CUBLASLT="${PROJECT_BINARY_DIR}/tests/libfake_cublaslt.so"
  FLP_TEST_FAKE_PROVIDER="${PROJECT_BINARY_DIR}/tests/libfake_provider.so"
  FLP_TEST_FLPGEN_LIBRARY="${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libflpgen.so"
  FLP_TEST_FLPGEN="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/flpgen")

if(helpers)
  add_library(flp_test_helpers OBJECT ${helpers})
  target_link_libraries(flp_test_helpers PUBLIC flp_test_settings flp_core PkgConfig::CRITERION)
endif()

add_custom_target(unit_programs) # all that the tests of C run
# The short form runs a program once: those of libflp with sanitizers, in a build without the generator, others without.
add_custom_target(unsanitized_programs)
function(label_unit name is_unsanitized)
  set(labels unit)
  if(is_unsanitized)
    add_dependencies(unsanitized_programs ${name})
  elseif(NOT FLP_SANITIZE)
    list(APPEND labels sanitized)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 1800 LABELS "${labels}")
endfunction()
check_linker_flag(C -fuse-ld=gold FLP_HAS_GOLD) # links them in half the time

foreach(source IN LISTS tests)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX MATCH "^test_(gen|plan_golden|ladder_arches)|${CLI_TESTS}" needs_generator ${name})
  if(needs_generator AND NOT TARGET flpgen)
    continue()
  endif()
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE flp_core flp_test_settings PkgConfig::CRITERION)
  # Criterion's macros shadow and convert freely. Most of a program runs once: to optimise it takes longer than it saves.
  target_compile_options(${name} PRIVATE -Wno-shadow -Wno-conversion -Wno-sign-conversion -O0)
  target_link_options(${name} PRIVATE $<$<BOOL:${FLP_HAS_GOLD}>:-fuse-ld=gold>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(TARGET flp_test_helpers)
    target_link_libraries(${name} PRIVATE flp_test_helpers)
  endif()
  if(source MATCHES "/unit/faults/")
    target_sources(${name} PRIVATE ${unit}/faults/faults.c)
    target_link_options(${name} PRIVATE ${FLP_FAULTY})
  endif()
  if(name STREQUAL "test_gen_llvm_names") # LLVM's headers, and functions of its own in LLVM's place
    target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:flpgen,INCLUDE_DIRECTORIES>)
  elseif(name MATCHES "^test_gen")
    target_link_libraries(${name} PRIVATE flpgen)
  endif()
  if(name MATCHES "${CLI_TESTS}" AND TARGET flpgen_cli)
    target_link_libraries(${name} PRIVATE flpgen_cli flpgen)
  endif()
  foreach(fake IN LISTS fakes)
    get_filename_component(fake_name ${fake} NAME_WE)
    add_dependencies(${name} ${fake_name})
  endforeach()
  add_dependencies(unit_programs ${name})
  add_test(NAME ${name} COMMAND ${name} --xml=${PROJECT_BINARY_DIR}/tests/results/${name}.xml)
  label_unit(${name} "${needs_generator}")
  if(name STREQUAL "test_gen_seconds") # tests/golden/language has what ends sooner
    set_tests_properties(${name} PROPERTIES LABELS "unit;long")
  endif()
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/tests/results)

# One kernel by its key, for tests/simt and tests/ptx.
if(TARGET flpgen_cli)
  add_executable(emit_kernel simt/emit_kernel.c)
  target_link_libraries(emit_kernel PRIVATE flpgen_cli flp_core flpgen)
  set_target_properties(emit_kernel PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endif()
