# Headers, libraries, and what find_package(qkv) and pkg-config need to find them.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkv)

install(DIRECTORY include/qkv ${PROJECT_BINARY_DIR}/include/qkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(kind shared static)
  install(TARGETS qkv_${kind} EXPORT qkv_${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT qkv_${kind} NAMESPACE qkv:: FILE qkv_${kind}.cmake DESTINATION ${package_dir})
endforeach()

configure_package_config_file(cmake/qkvConfig.cmake.in qkvConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(qkvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qkvConfig.cmake ${PROJECT_BINARY_DIR}/qkvConfigVersion.cmake cmake/dependencies.cmake
        DESTINATION ${package_dir})

# The .pc files find the rest from where they lie, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(file qkv.pc qkv-static.pc)
  configure_file(cmake/${file}.in ${file} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
