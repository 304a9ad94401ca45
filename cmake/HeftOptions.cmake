# Language level, warnings and build-wide options.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

option(HEFT_WERROR "Treat warnings as errors (CI)" OFF)
option(HEFT_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
set(HEFT_SANITIZE "" CACHE STRING "Sanitizers, such as address,undefined or thread")

add_library(heft_flags INTERFACE)
target_compile_definitions(heft_flags INTERFACE _GNU_SOURCE)
target_compile_options(heft_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
  -Wswitch-enum -Wundef -Wcast-qual -fno-common -fstack-protector-strong)
if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
  target_compile_options(heft_flags INTERFACE -Wthread-safety)
endif()
if(HEFT_WERROR)
  target_compile_options(heft_flags INTERFACE -Werror)
endif()
if(HEFT_SANITIZE)
  target_compile_options(heft_flags INTERFACE -fsanitize=${HEFT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(heft_flags INTERFACE -fsanitize=${HEFT_SANITIZE})
endif()
if(HEFT_FUZZ)
  target_compile_options(heft_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
