# qkv_options: how every file of this project is compiled, but for those that stand for a user's code.
add_library(qkv_warnings INTERFACE)
target_compile_options(qkv_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${QKV_WARNINGS_AS_ERRORS}>:-Werror>)

add_library(qkv_options INTERFACE)
target_link_libraries(qkv_options INTERFACE qkv_warnings)
target_compile_features(qkv_options INTERFACE cxx_std_20)
# Equal bits need sums that are not contracted; masked selects vectorise only without trapping arithmetic. No -m flags and
# no -ffast-math: Highway chooses the instruction set at run time.
target_compile_options(qkv_options INTERFACE -ffp-contract=off -fno-trapping-math -fno-math-errno)

if(QKV_SANITIZE)
  add_compile_options(-fsanitize=${QKV_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${QKV_SANITIZE})
endif()
