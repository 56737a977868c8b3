// What a kernel that was compiled with -fsanitize=thread calls, and what Python asks of a checker.
#include <dlfcn.h>

#include <cstdio>

#include "check.h"

using namespace llmc2py;

namespace {

inline void check(const volatile void *address, std::size_t size, bool write, Access::Kind kind, void *code)
{
    Worker *worker = current_worker();
    if (worker == nullptr || worker->checker == nullptr) {
        return;
    }
    bool may_go_on = false;
    {
        const Hold hold(worker);
        may_go_on = worker->checker->access(*worker, reinterpret_cast<std::uintptr_t>(address), size, write, kind,
                                            reinterpret_cast<std::uint64_t>(code));
    }
    if (!may_go_on) {
        worker->fail(Fault::refused, "an access far out of bounds was not made", Site{nullptr, 0});
    }
}

// Begins what the compiler says of a check that failed.
struct CheckedPlace {
    const char *file;
    std::uint32_t line, column;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ACCESS(NAME, SIZE, WRITE) \
    EXPORT void NAME(void *address) { check(address, SIZE, WRITE, Access::plain, __builtin_return_address(0)); }
#define ACCESSES(SIZE)                                   \
    ACCESS(__tsan_read##SIZE, SIZE, false)               \
    ACCESS(__tsan_write##SIZE, SIZE, true)               \
    ACCESS(__tsan_unaligned_read##SIZE, SIZE, false)     \
    ACCESS(__tsan_unaligned_write##SIZE, SIZE, true)     \
    ACCESS(__tsan_volatile_read##SIZE, SIZE, false)      \
    ACCESS(__tsan_volatile_write##SIZE, SIZE, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

EXPORT void __tsan_init(void) {}
EXPORT void __tsan_func_entry(void *) {}
EXPORT void __tsan_func_exit(void) {}
EXPORT void __tsan_vptr_update(void **, void *) {}
EXPORT void __tsan_vptr_read(void **) {}
EXPORT void __tsan_read_range(void *address, unsigned long size)
{
    check(address, size, false, Access::plain, __builtin_return_address(0));
}
EXPORT void __tsan_write_range(void *address, unsigned long size)
{
    check(address, size, true, Access::plain, __builtin_return_address(0));
}
EXPORT void *__tsan_memcpy(void *target, const void *source, unsigned long size)
{
    check(source, size, false, Access::plain, __builtin_return_address(0));
    check(target, size, true, Access::plain, __builtin_return_address(0));
    return __builtin_memcpy(target, source, size);
}
EXPORT void *__tsan_memmove(void *target, const void *source, unsigned long size)
{
    check(source, size, false, Access::plain, __builtin_return_address(0));
    check(target, size, true, Access::plain, __builtin_return_address(0));
    return __builtin_memmove(target, source, size);
}
EXPORT void *__tsan_memset(void *target, int value, unsigned long size)
{
    check(target, size, true, Access::plain, __builtin_return_address(0));
    return __builtin_memset(target, value, size);
}
EXPORT void llmc2py_check_atomic(const volatile void *address, unsigned int size)
{
    check(address, size, true, Access::atomic, __builtin_return_address(0));
}

// What -fsanitize=integer-divide-by-zero calls before such a division.
EXPORT void __ubsan_handle_divrem_overflow(const CheckedPlace *place, std::uintptr_t, std::uintptr_t)
{
    Worker *worker = current_worker();
    {
        const Hold hold(worker);
        const auto key = reinterpret_cast<std::uint64_t>(place);
        if (Finding *finding = worker->checker->report(Problem::division, 0, key, 0)) {
            std::snprintf(finding->place, sizeof finding->place, "%s:%u: integer division by zero", place->file,
                          place->line);
        }
    }
    worker->fail(Fault::refused, "integer division by zero", Site{place->file, static_cast<int>(place->line)});
}

EXPORT Checker *llmc2py_checker_new(void) { return new Checker(); }
EXPORT void llmc2py_checker_free(Checker *checker) { delete checker; }
EXPORT std::uint64_t llmc2py_checker_add(Checker *checker, std::uint64_t pointer, std::uint64_t nbytes, std::uint32_t grain)
{
    return checker->add_buffer(reinterpret_cast<void *>(pointer), nbytes, grain);
}
// Also readable: arguments. With ``close``, what no region and nothing of the kernel's own holds is out of bounds.
EXPORT void llmc2py_checker_allow(Checker *checker, std::uint64_t address, std::uint64_t nbytes)
{
    checker->others.emplace_back(address, nbytes);
}
EXPORT void llmc2py_checker_close(Checker *checker) { checker->closed = true; }
EXPORT void llmc2py_checker_copy_back(Checker *checker)
{
    for (const Region &region : checker->regions) {
        if (region.original != nullptr) {
            __builtin_memcpy(region.original, reinterpret_cast<void *>(region.start), region.stop - region.start);
        }
    }
}
EXPORT std::uint64_t llmc2py_checker_findings(Checker *checker) { return checker->findings.size(); }
EXPORT const Finding *llmc2py_checker_finding(Checker *checker, std::uint64_t number) { return &checker->findings[number]; }

EXPORT std::uint64_t llmc2py_module_base(void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 ? reinterpret_cast<std::uint64_t>(info.dli_fbase) : 0;
}
