# Drivers that make random calls for as long as they are told (tests/README.md): of the whole C API, for the build with
# AddressSanitizer, and of threads, for that with ThreadSanitizer. Each prints its count of tries, and how to repeat one
# that failed.
set(drivers ${CMAKE_CURRENT_SOURCE_DIR}/drivers)
file(GLOB api_sources CONFIGURE_DEPENDS ${drivers}/api_*.c)
add_executable(api_driver EXCLUDE_FROM_ALL ${api_sources})
add_executable(thread_driver EXCLUDE_FROM_ALL ${drivers}/thread_driver.c)
foreach(driver api_driver thread_driver)
  target_link_libraries(${driver} PRIVATE flp_core flp_test_settings)
  set_target_properties(${driver} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endforeach()
add_dependencies(thread_driver fake_cuda fake_provider)

# A driver as a test, which is a part of what `label` asks for.
function(add_driver name label)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1800 LABELS "${label}")
endfunction()

if(FLP_SANITIZE MATCHES "address")
  add_driver(api_driver unit api_driver --seed 1 --tries 800)
  add_driver(api_driver_long "unit;long" api_driver --seed 2 --tries 32000)
  add_driver(thread_driver unit thread_driver --threads 64 --rounds 1)
  add_dependencies(unit_programs api_driver thread_driver)
elseif(NOT FLP_SANITIZE) # here threads are at work during a fork
  add_driver(thread_driver unit thread_driver --threads 64 --rounds 2)
  set_target_properties(thread_driver PROPERTIES EXCLUDE_FROM_ALL OFF)
  add_dependencies(unit_programs thread_driver)
  add_dependencies(unsanitized_programs thread_driver)
elseif(FLP_SANITIZE MATCHES "thread")
  add_driver(thread_driver_races races thread_driver --threads 64 --rounds 12)
endif()
