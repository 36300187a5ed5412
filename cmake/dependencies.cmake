# What libqkv itself links: Threads::Threads, hwy::hwy and PkgConfig::libzip, each where it is found. Installed too, because
# a program that links the static library needs the same targets.
find_package(Threads QUIET)
find_package(PkgConfig QUIET)
# libzip's own CMake files name programs of other packages, so its .pc file is asked.
if(PkgConfig_FOUND AND NOT TARGET PkgConfig::libzip)
  pkg_check_modules(libzip QUIET IMPORTED_TARGET libzip)
endif()
find_package(hwy CONFIG QUIET)
if(PkgConfig_FOUND AND NOT TARGET hwy::hwy)
  pkg_check_modules(libhwy QUIET IMPORTED_TARGET libhwy)
  if(TARGET PkgConfig::libhwy)
    add_library(hwy::hwy INTERFACE IMPORTED)
    target_link_libraries(hwy::hwy INTERFACE PkgConfig::libhwy)
  endif()
endif()
