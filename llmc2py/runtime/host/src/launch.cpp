// The entrance from Python, and the functions that kernels call.
#include <link.h>
#include <time.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "worker.h"

namespace llmc2py {

namespace {

// Below this much estimated work a launch stays on the calling thread.
constexpr double spread_from_seconds = 200e-6;

struct Search {
    std::uintptr_t code;
    Module found;
};

int match_module(dl_phdr_info *info, std::size_t, void *data)
{
    auto *search = static_cast<Search *>(data);
    bool inside = false;
    Module module{~std::uintptr_t{0}, 0, static_cast<char *>(info->dlpi_tls_data), 0};
    for (int number = 0; number < info->dlpi_phnum; ++number) {
        const auto &header = info->dlpi_phdr[number];
        const std::uintptr_t start = info->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD) {
            inside = inside || search->code - start < header.p_memsz;
            module.low = std::min(module.low, start);
            module.high = std::max<std::uintptr_t>(module.high, start + header.p_memsz);
        } else if (header.p_type == PT_TLS && module.local != nullptr) {
            module.local_bytes = header.p_memsz;
        }
    }
    if (inside) {
        search->found = module;
    }
    return inside ? 1 : 0;
}

// A kernel's static shared memory is its library's thread-local segment: one copy for every operating-system thread.
Module kernel_module(const Launch &launch)
{
    thread_local std::unordered_map<void (*)(), Module> known;
    const auto place = known.find(launch.kernel->touch);
    if (place != known.end()) {
        return place->second;
    }
    launch.kernel->touch();
    Search search{reinterpret_cast<std::uintptr_t>(launch.kernel->entry), {}};
    dl_iterate_phdr(match_module, &search);
    known.emplace(launch.kernel->touch, search.found);
    return search.found;
}

thread_local std::string last_fault;

std::mutex pool_lock;
std::vector<std::unique_ptr<Worker>> pool;

// Workers keep their stacks from launch to launch; operating-system threads are made anew, which a fork survives.
class Lease {
public:
    Lease()
    {
        const std::lock_guard<std::mutex> hold(pool_lock);
        if (!pool.empty()) {
            worker_ = std::move(pool.back());
            pool.pop_back();
        } else {
            worker_ = std::make_unique<Worker>();
        }
    }
    ~Lease()
    {
        const std::lock_guard<std::mutex> hold(pool_lock);
        pool.push_back(std::move(worker_));
    }
    Worker *operator->() const { return worker_.get(); }

private:
    std::unique_ptr<Worker> worker_;
};

double seconds()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void work(Launch &launch, Progress &progress, std::uint64_t blocks, bool may_spread)
{
    Lease worker;
    worker->module = kernel_module(launch);
    catch_traps();
    worker->begin_launch(&launch, &progress);
    std::vector<std::thread> helpers;
    const double start = may_spread ? seconds() : 0.0;
    for (std::uint64_t done = 1; !progress.failed.load(std::memory_order_relaxed); ++done) {
        const std::uint64_t block = progress.next_block.fetch_add(1);
        if (block >= blocks) {
            break;
        }
        worker->run_block(block);
        progress.blocks_done.fetch_add(1, std::memory_order_relaxed);
        if (may_spread && (done & (done - 1)) == 0) {
            const std::uint64_t left = blocks - block - 1;
            if ((seconds() - start) / static_cast<double>(done) * static_cast<double>(left) > spread_from_seconds) {
                may_spread = false;
                for (int number = 1; number < launch.kernel->workers && static_cast<std::uint64_t>(number) <= left; ++number) {
                    helpers.emplace_back(work, std::ref(launch), std::ref(progress), blocks, false);
                }
            }
        }
    }
    worker->end_launch();
    for (std::thread &helper : helpers) {
        helper.join();
    }
}

}  // namespace

}  // namespace llmc2py

using namespace llmc2py;

extern "C" {

// Returns the fault that ended the launch, 0 for none; llmc2py_last_fault() then says more, on the same thread.
__attribute__((visibility("default"))) int llmc2py_launch(const Kernel *kernel, void **arguments, std::uint32_t grid_x,
                                                          std::uint32_t grid_y, std::uint32_t grid_z,
                                                          std::uint32_t block_x, std::uint32_t block_y,
                                                          std::uint32_t block_z, std::uint64_t shared_bytes,
                                                          Checker *checker)
{
    Launch launch{kernel, arguments, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, checker};
    Progress progress;
    const std::uint64_t blocks = 1ull * grid_x * grid_y * grid_z;
    work(launch, progress, blocks, kernel->workers > 1 && blocks > 1 && checker == nullptr);
    if (launch.fault != Fault::none) {
        last_fault = launch.message;
    }
    return static_cast<int>(launch.fault);
}

__attribute__((visibility("default"))) const char *llmc2py_last_fault(void) { return last_fault.c_str(); }

unsigned int llmc2py_barrier(int predicate, unsigned int *present, Site site)
{
    return current_worker()->barrier(predicate != 0, present, site);
}

unsigned int llmc2py_collective(Collective kind, unsigned int mask, int source, Payload *payload, Site site)
{
    return current_worker()->collective(kind, mask, source, payload, site);
}

void llmc2py_yield(void) { current_worker()->yield(); }

void llmc2py_fence(void)
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (current_worker()->checker != nullptr) {
        checker_fence(current_worker()->checker);
    }
}

// The C library holds locks in these: a thread that is taken out of them would keep them for ever.
int llmc2py_printf(const char *format, ...)
{
    const Hold hold(current_worker());
    std::va_list arguments;
    va_start(arguments, format);
    const int count = std::vprintf(format, arguments);
    va_end(arguments);
    return count;
}

void *llmc2py_malloc(std::size_t size)
{
    Worker *worker = current_worker();
    const Hold hold(worker);
    if (worker != nullptr && worker->checker != nullptr) {
        checker_allocates(worker->checker);
    }
    return std::malloc(size);
}

void llmc2py_free(void *memory)
{
    const Hold hold(current_worker());
    std::free(memory);
}

void llmc2py_fault(const char *message, Site site)
{
    current_worker()->fail(Fault::trap, message, site);
}

void llmc2py_assertion_failed(const char *expression, const char *file, int line)
{
    char what[640];
    std::snprintf(what, sizeof what, "assertion failed: %s", expression);
    current_worker()->fail(Fault::assertion, what, Site{file, line});
}
}
