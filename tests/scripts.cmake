# Tests that are not C: pytest over the binding, ptxas budgets, recorded evidence, the command and the installed package.

# A library with sanitizers cannot be opened by an interpreter without them, and the scripts check what ships.
if(FLP_SANITIZE)
  return()
endif()

set(FLP_PTXAS "" CACHE FILEPATH "ptxas 13.0 or newer; empty: searched in PATH, and its tests are skipped without one")
if(NOT FLP_PTXAS)
  find_program(FLP_FOUND_PTXAS ptxas HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(FLP_FOUND_PTXAS)
    set(FLP_PTXAS ${FLP_FOUND_PTXAS} CACHE FILEPATH "" FORCE)
  endif()
endif()

set(FLP_NVDISASM "" CACHE FILEPATH "nvdisasm 13.0 or newer; empty: searched beside ptxas and in PATH")

# What the scripts know of this build, as environment.
set(SCRIPT_ENVIRONMENT
  PYTHONPATH=${PROJECT_SOURCE_DIR}/runtime/python PYTHONDONTWRITEBYTECODE=1
  FLP_LIBRARY=${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}/libflp.so
  FLP_TEST_BUILD=${PROJECT_BINARY_DIR} FLP_TEST_TREE=${PROJECT_SOURCE_DIR}
  FLP_TEST_FLPGEN=${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_BINDIR}/flpgen
  FLP_TEST_FAKE_CUDA=${PROJECT_BINARY_DIR}/tests/libfake_cuda.so
  FLP_TEST_FAKE_FAULTS=${PROJECT_BINARY_DIR}/tests/libfake_faults.so FLP_PTXAS=${FLP_PTXAS}
  FLP_NVDISASM=${FLP_NVDISASM})

# One CTest entry per folder that holds test_*.py.
foreach(folder python simt ptx gpu install fails golden cli)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/test_*.py)
  if(scripts)
    set(name pytest_${folder})
    add_test(NAME ${name}
      COMMAND ${FLP_PYTHON} -m pytest -q -p no:cacheprovider --rootdir ${CMAKE_CURRENT_SOURCE_DIR}/${folder}
              -o junit_logging=no --junitxml=${PROJECT_BINARY_DIR}/tests/results/${name}.xml
              ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS script ENVIRONMENT "${SCRIPT_ENVIRONMENT}")
  endif()
endforeach()
