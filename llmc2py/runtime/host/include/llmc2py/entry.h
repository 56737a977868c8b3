// How the runtime enters a kernel: arguments come as cuLaunchKernel's array of pointers to values.
#pragma once

namespace llmc2py {

// Dynamic shared memory that is declared at namespace scope, where no pointer could be taken beforehand.
template <class T>
struct DynamicShared {
    operator T *() const { return static_cast<T *>(llmc2py_dynamic_shared); }
};

template <auto Kernel>
struct Entry;

template <class... Parameters, void (*Kernel)(Parameters...)>
struct Entry<Kernel> {
    static void call(void **arguments) { unpack(arguments, std::index_sequence_for<Parameters...>{}); }

private:
    template <std::size_t... Index>
    static void unpack([[maybe_unused]] void **arguments, std::index_sequence<Index...>)
    {
        Kernel(*static_cast<std::remove_reference_t<Parameters> *>(arguments[Index])...);
    }
};

}  // namespace llmc2py

// The marker gives every kernel library a thread-local segment, which holds the kernel's static shared memory.
#define LLMC2PY_ENTRY(...)                                                       \
    static thread_local char llmc2py_marker;                                     \
    extern "C" __attribute__((visibility("default"))) void llmc2py_touch(void)   \
    {                                                                            \
        *static_cast<volatile char *>(&llmc2py_marker) = 0;                      \
    }                                                                            \
    extern "C" __attribute__((visibility("default"))) void llmc2py_kernel(void **arguments) \
    {                                                                            \
        llmc2py::Entry<&__VA_ARGS__>::call(arguments);                           \
    }
