// Whether this program is built with a sanitizer: gcc and clang say it in different ways.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define QKV_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define QKV_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QKV_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define QKV_THREAD_SANITIZER 1
#endif
#endif

namespace qkv::testing {
#ifdef QKV_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#ifdef QKV_THREAD_SANITIZER
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitizer = kAddressSanitizer || kThreadSanitizer;
}  // namespace qkv::testing
