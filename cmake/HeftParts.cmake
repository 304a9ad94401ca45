# heft_add_part(<name> SOURCES ... [LIBS ...]): one part of the library, an object library heft_<name>.
# A part sees include/ and src/; which parts it may include is checked by tools/check_layers.
function(heft_add_part name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(heft_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(heft_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(heft_${name} PRIVATE heft_flags PUBLIC ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY HEFT_PARTS heft_${name})
endfunction()
