# The functions of vcpkg that the port calls, for `cmake -P`: they unpack, configure and place files
# as vcpkg does. With FASTNORM_BUILD they also compile and install. Without it LIBRARY is installed,
# with the headers and the files for CMake.
include_guard()
set(PORT fastnorm)
set(CURRENT_PACKAGES_DIR "${WORK}/packages")
file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}")

function(vcpkg_download_distfile out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  set(target "${WORK}/${arg_FILENAME}")
  file(DOWNLOAD "${arg_URLS}" "${target}" EXPECTED_HASH "SHA512=${arg_SHA512}")
  set(${out} "${target}" PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT "${arg_ARCHIVE}" DESTINATION "${WORK}/source")
  file(GLOB folders "${WORK}/source/*")
  list(LENGTH folders count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "the archive has ${count} folders; required: one")
  endif()
  set(${out} "${folders}" PARENT_SCOPE)
endfunction()

function(vcpkg_configure_meson)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(
    COMMAND meson setup "${arg_SOURCE_PATH}/build" "${arg_SOURCE_PATH}" --buildtype "${BUILDTYPE}"
            --prefix "${CURRENT_PACKAGES_DIR}" --libdir lib ${arg_OPTIONS}
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_install_meson)
  if(FASTNORM_BUILD)
    execute_process(COMMAND meson install -C "${SOURCE_PATH}/build" COMMAND_ERROR_IS_FATAL ANY)
    return()
  endif()
  set(lib "${CURRENT_PACKAGES_DIR}/lib")
  file(INSTALL "${SOURCE_PATH}/include/fastnorm" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
  file(GLOB configs "${SOURCE_PATH}/build/packages/cmake/*.cmake")
  file(INSTALL ${configs} DESTINATION "${lib}/cmake/fastnorm")
  file(COPY_FILE "${LIBRARY}" "${lib}/libfastnorm.so.${VERSION}")
  file(CREATE_LINK "libfastnorm.so.${VERSION}" "${lib}/libfastnorm.so.1" SYMBOLIC)
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  set(from "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}")
  if(NOT EXISTS "${from}/fastnormConfig.cmake")
    message(FATAL_ERROR "${arg_CONFIG_PATH} has no fastnormConfig.cmake")
  endif()
  file(GLOB files "${from}/*")
  file(INSTALL ${files} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
  file(REMOVE_RECURSE "${from}")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(READ "${arg_FILE_LIST}" text)
  file(WRITE "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" "${text}")
endfunction()

include("${PORTFILE}")
