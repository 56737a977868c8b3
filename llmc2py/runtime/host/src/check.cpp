#include "worker.h"
namespace llmc2py {
void checker_begin_block(Checker *, const Worker &) {}
void checker_barrier(Checker *) {}
void checker_fence(Checker *) {}
void checker_divergence(Checker *, const Worker &, Site, Site, unsigned int) {}
void checker_inactive_lane(Checker *, const Worker &, Site) {}
}
extern "C" void llmc2py_check_atomic(const volatile void *, unsigned int) {}
