// What the shared library shows to the outside. Everything else is hidden.
#pragma once
#if defined(QKV_STATIC)
#define QKV_EXPORT
#elif defined(_WIN32)
#if defined(QKV_BUILDING)
#define QKV_EXPORT __declspec(dllexport)
#else
#define QKV_EXPORT __declspec(dllimport)
#endif
#else
#define QKV_EXPORT __attribute__((visibility("default")))
#endif
