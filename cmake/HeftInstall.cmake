# Install: the shared library, its headers, recipes, heft.pc and heftConfig.cmake.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS heft EXPORT heft-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT heft-targets NAMESPACE heft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/heft)
configure_package_config_file(cmake/heftConfig.cmake.in heftConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/heft)
write_basic_package_version_file(heftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heftConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/heftConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/heft)
configure_file(cmake/heft.pc.in heft.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/heft.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/heft/recipes FILES_MATCHING PATTERN "*.heft")
