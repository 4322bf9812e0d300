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

# Several CTest entries, so that processors share them; the first that takes a file has it. tests/conftest.py finds what
# a test needs from the build folder. The limit is for what hangs: on an idle machine an entry takes some minutes, and
# with --all an hour or two.
set(SCRIPT_ENVIRONMENT FLP_TEST_BUILD=${PROJECT_BINARY_DIR} FLP_PTXAS=${FLP_PTXAS} FLP_NVDISASM=${FLP_NVDISASM})
set(taken "")
foreach(entry "install install/" "simt_check simt/test_check" "simt_modes simt/" "cli_tune cli/test_cli_tune" "cli cli/"
        "python python/" "trainers trainers/" "ptx ptx/" "scripts scripts/" "gpu gpu/" "drivers drivers/"
        "campaign campaign/")
  string(REPLACE " " ";" entry ${entry})
  list(GET entry 0 name)
  list(GET entry 1 prefix)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${prefix}*.py)
  list(FILTER scripts INCLUDE REGEX "/test_[^/]*$")
  list(REMOVE_ITEM scripts ${taken})
  list(APPEND taken ${scripts})
  add_test(NAME pytest_${name}
    COMMAND ${FLP_PYTHON} -m pytest -c ${CMAKE_CURRENT_SOURCE_DIR}/pytest.ini --rootdir ${CMAKE_CURRENT_SOURCE_DIR}
            --junitxml=${PROJECT_BINARY_DIR}/tests/results/pytest_${name}.xml ${scripts})
  set_tests_properties(pytest_${name} PROPERTIES TIMEOUT 14400 LABELS script COST 100 ENVIRONMENT "${SCRIPT_ENVIRONMENT}")
endforeach()
